"""`tracekit scrub`: a copy of a trace that can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def scrub(
    trace: Annotated[Path, typer.Argument(help="An nsys SQLite export.", metavar="IN.sqlite")],
    out: Annotated[Path, typer.Argument(help="The copy.", metavar="OUT.sqlite")],
    rename_kernels: Annotated[
        bool, typer.Option("--rename-kernels", help="Kernels become `kernel 1`, `kernel 2`, ...")
    ] = False,
    rename_ranges: Annotated[
        bool, typer.Option("--rename-ranges", help="NVTX ranges and domains become `range 1`, ...")
    ] = False,
    slim: Annotated[bool, typer.Option("--slim", help="Only what tracekit reads.")] = False,
    window: Annotated[
        str | None,
        typer.Option(metavar="START..END", help="Only this part of the trace's clock: 1.2s..1.5s."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT where it exists.")] = False,
) -> None:
    """Copy a trace without what says who recorded it and where, and check the copy.

    Gone are environment, command lines, paths, names of host, user, processes and threads, GPU serials.
    Kernel names, times and ranges stay, and so does every number of `tracekit gaps`.

    Example: tracekit scrub trace.sqlite mail.sqlite --slim
    """
    from tracekit.cli_gaps import parse_window
    from tracekit.report.names import printable
    from tracekit.scrub import Wanted, describe
    from tracekit.scrub import scrub as write_copy

    wanted = Wanted(rename_kernels, rename_ranges, slim, parse_window(window))
    made = write_copy(trace, out, wanted, force=force)
    print(describe(printable(out.name), made, wanted))
