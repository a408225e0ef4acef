"""`tracekit report` and `tracekit export`: the page, and files for other viewers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.errors import UsageError

TraceFile = Annotated[Path, typer.Argument(help="An nsys SQLite export.", metavar="TRACE")]


def report(
    trace: TraceFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")],
    range_name: Annotated[
        str | None,
        typer.Option("--range", help="A step is this NVTX range; the answer is about it alone."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="A second trace, drawn below at the same scale.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare recordings that were not made in the same way.")
    ] = False,
) -> None:
    """Write one HTML file that shows where the time goes, where the gaps are, and why; it works offline.

    Example: tracekit report trace.sqlite -o report.html
    """
    from tracekit.analysis.compare import compare as compare_traces
    from tracekit.decode.classes import classify_kernel
    from tracekit.readers import read
    from tracekit.report.timeline import write_timeline
    from tracekit.report.timeline_data import collect_page

    traces = [read(path, shapes=True) for path in (trace, compare) if path]
    difference = compare_traces(traces[0], traces[1], classify_kernel, force=force) if compare else None
    write_timeline([collect_page(one, range_name) for one in traces], output, difference)


def export(
    trace: TraceFile,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write Chrome JSON (.json.gz) that Perfetto opens.")
    ] = None,
) -> None:
    """Write the trace for another viewer, with no kernel lost.

    Example: tracekit export trace.sqlite --perfetto out.json.gz
    """
    from tracekit.readers import read
    from tracekit.report.perfetto import write_perfetto

    if perfetto is None:
        raise UsageError("say what to write: --perfetto out.json.gz")
    write_perfetto(read(trace, shapes=True), perfetto)
