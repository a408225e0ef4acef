"""The commands that record: `profile`, `workloads`, `doctor`, `calibrate`."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.analysis.gaps import gaps as measure_gaps
from tracekit.capture import calibrate as calibration_run
from tracekit.capture import text as capture_text
from tracekit.capture.doctor import examine
from tracekit.capture.profile import Options, Recording, record
from tracekit.capture.workloads import list_workloads
from tracekit.cli_gaps import show_gaps
from tracekit.cli_report import report as write_report
from tracekit.decode.calibration import Measured, save_calibration
from tracekit.errors import CaptureError, UsageError
from tracekit.readers import read


class Backend(StrEnum):
    """What records."""

    AUTO = "auto"
    NSYS = "nsys"
    CUPTI = "cupti"


class Level(StrEnum):
    """At which graph levels to record."""

    BOTH = "both"
    NODE = "node"
    GRAPH = "graph"


LEVELS = {Level.BOTH: ("graph", "node"), Level.NODE: ("node",), Level.GRAPH: ("graph",)}
BackendOption = Annotated[Backend, typer.Option(help="nsys, or CUPTI in the program's own process.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite what exists.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def register(app: typer.Typer) -> None:
    """Add the four commands to the command line."""
    # a workload's own options are unknown here: they stay among the words
    passing_on = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(context_settings=passing_on)(profile)
    app.command()(workloads)
    app.command()(doctor)
    app.command()(calibrate)


def profile(
    words: Annotated[
        list[str], typer.Argument(metavar="WORKLOAD [ITS OPTIONS] | -- COMMAND", help="What to record.")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The trace, NAME.sqlite.")] = None,
    backend: BackendOption = Backend.AUTO,
    level: Annotated[
        Level, typer.Option(help="Graph level: node shows the kernels of a replay.")
    ] = Level.BOTH,
    untraced: Annotated[bool, typer.Option(help="Also run without a profiler, to see what it adds.")] = True,
    nsys_args: Annotated[str, typer.Option(help="More flags for nsys profile, in one string.")] = "",
    capture_range: Annotated[
        bool, typer.Option("--capture-range", help="Record between cudaProfilerStart and Stop only.")
    ] = False,
    keep_report: Annotated[bool, typer.Option("--keep-report", help="Keep nsys's own report too.")] = False,
    force: ForceOption = False,
) -> None:
    """Record a workload, or any command line, and what tracing adds to it.

    Examples: tracekit profile pdl_chain --layers 100
              tracekit profile -o decode.sqlite -- python decode.py
    """
    recording = run_profile(
        words,
        Options(
            output=output,
            backend=backend.value,
            levels=LEVELS[level],
            untraced=untraced,
            nsys_args=_split(nsys_args),
            capture_range=capture_range,
            keep_report=keep_report,
            force=force,
        ),
    )
    print(capture_text.recording_text(recording))
    print(show_gaps(recording.trace, "range"), end="")
    page = recording.trace.with_suffix(".html")
    if force or not page.exists():
        write_report(recording.trace, page)


def run_profile(words: list[str], options: Options) -> Recording:
    """Record, with progress on stderr."""
    return record(words, options, _progress)


def workloads(as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """List the workloads, with what each shows.

    Example: tracekit workloads
    """
    found = list_workloads()
    if as_json:
        print(capture_text.workloads_json(found))
    elif as_csv:
        print(capture_text.workloads_csv(found))
    else:
        print(capture_text.workloads_text(found))


def doctor(as_json: JsonOption = False, as_csv: CsvOption = False) -> None:
    """Say what this machine has for recording, and what to install for what it lacks.

    Example: tracekit doctor
    """
    report = examine()
    if as_json:
        print(capture_text.doctor_json(report))
    elif as_csv:
        print(capture_text.doctor_csv(report))
    else:
        print(capture_text.doctor_text(report))


def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", help="The calibration, a JSON file.")] = Path(
        "calibration.json"
    ),
    backend: BackendOption = Backend.AUTO,
    traced: Annotated[bool, typer.Option(help="Also record, for perturbation and white space.")] = True,
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Measure this GPU: bandwidths, boundary cost, device gap, what tracing adds.

    Example: tracekit calibrate -o h200.json
    """
    if output.exists() and not force:
        raise CaptureError(f"{output} exists: choose another --output, or overwrite it with --force")
    plan = calibration_run.Plan(backend=backend.value, traced=traced)
    calibration = calibration_run.calibrate(plan, _progress, read_white_space)
    save_calibration(calibration, output)
    print(output.read_text().rstrip() if as_json else capture_text.calibration_text(calibration))


def read_white_space(trace: Path) -> dict[str, Measured]:
    """The gap of each mode of the chain in a trace: median, p10 and p90, by its NVTX range."""
    report = measure_gaps(read(trace), by="range")
    found = {}
    for row in report.rows:
        mode = str(row.key["range"]).removeprefix("tracekit:")
        where = "replay" if mode.startswith("graph") else "launch"
        if mode in calibration_run.MODES and row.where == where:
            found[mode] = Measured(row.gap_ns.median, row.gap_ns.p10, row.gap_ns.p90, row.boundaries)
    return found


def _progress(line: str) -> None:
    print(line, file=sys.stderr)


def _split(flags: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(flags))
    except ValueError as error:
        raise UsageError(f"--nsys-args {flags!r}: {error}") from None
