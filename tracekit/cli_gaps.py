"""`tracekit gaps`: read, analyse, render."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from tracekit.errors import CaptureError, UnanswerableError, UsageError

if TYPE_CHECKING:
    from tracekit.analysis.gaps import By, GapReport, Selection, Window
    from tracekit.analysis.perturbation import Perturbation
    from tracekit.report.text import Page
    from tracekit.trace import Trace

DEFAULT_TOP = 10  # rows in the terminal
T = TypeVar("T")
LARGE_FILE_BYTES = 100_000_000  # from here on reading takes long enough to say what it does


class ByOption(StrEnum):
    """What `gaps --by` groups by."""

    RANGE = "range"
    STREAM = "stream"
    PAIR = "pair"
    KERNEL = "kernel"
    GRAPH = "graph"
    TASK = "task"
    NONE = "none"


class WhereOption(StrEnum):
    """Which boundaries `gaps --where` keeps."""

    REPLAY = "replay"
    LAUNCH = "launch"
    ALL = "all"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")]


def gaps(
    traces: Annotated[
        list[Path], typer.Argument(help="nsys SQLite exports, PyTorch Chrome traces.", metavar="TRACE...")
    ],
    by: Annotated[ByOption, typer.Option(help="Group the boundaries; task: inside kernels.")] = ByOption.PAIR,
    range_name: Annotated[
        str | None,
        typer.Option("--range", help="Only inside this NVTX range: a name or a regular expression."),
    ] = None,
    where: Annotated[WhereOption, typer.Option(help="Only one kind of boundary.")] = WhereOption.ALL,
    process: Annotated[int | None, typer.Option(help="Only this process.")] = None,
    device: Annotated[int | None, typer.Option(help="Only this CUDA device.")] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="START..END", help="Only this part of the trace's clock: 1.2s..1.5s."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Only the first N rows. [10 in the terminal]")
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Measure how long the GPU waits between kernels, where, and why.

    Example: tracekit gaps trace.sqlite --by range
    """
    from tracekit.analysis.gaps import Selection

    _one_format(as_json, as_csv)
    selection = Selection(range_name, where.value, process, device, parse_window(window))
    paths = [exported(path) for path in traces]
    group: By | Literal["task"] = by.value
    if group == "task":
        whole = not as_csv and selection == Selection()
        print(_tasks(paths, top, as_json, whole), end="")
    elif as_json or as_csv:
        print(_machine_readable(paths, group, selection, top, as_json), end="")
    else:
        from tracekit.report.text import gaps_text

        pages = _measure(paths, lambda path, say: _page(path, group, selection, top or DEFAULT_TOP, say))
        print(gaps_text(pages, _width()), end="")


def parse_window(text: str | None) -> Window | None:
    """`START..END` in nanoseconds of the trace's clock; an end left out is open."""
    from tracekit.units import parse_ns

    if text is None:
        return None
    start, dots, end = text.partition("..")
    try:
        low, high = (parse_ns(side) if side.strip() else None for side in (start, end))
    except ValueError as error:
        raise UsageError(f"--window: {error}") from error
    if not dots or (low is not None and high is not None and high <= low):
        raise UsageError(f"--window wants START..END with START before END, as in 1.2s..1.5s, not {text!r}")
    return low, high


def exported(path: Path) -> Path:
    """The trace to read: an nsys report is exported into the cache folder where nsys is installed.

    Where it is not, the report itself comes back, and the reader says how to export it.
    """
    from tracekit.readers import is_report

    if not is_report(path):
        return path
    import hashlib

    from tracekit.capture.nsys import cache_folder, export_report, find_nsys

    try:
        nsys = find_nsys(os.environ)
    except CaptureError:
        return path
    status = path.stat()
    key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape")
    folder = cache_folder(os.environ) / "exports" / hashlib.sha256(key).hexdigest()[:16]
    target = folder / f"{path.stem}.sqlite"
    if not target.exists():
        print(f"tracekit: exporting {path.name} once, into its cache", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        # What breaks off must not be found again.
        unfinished = folder / f"unfinished-{os.getpid()}.sqlite"
        export_report(path, nsys.path, unfinished)
        unfinished.replace(target)
    return target


def show_gaps(path: Path, by: By) -> str:
    """What `tracekit gaps PATH --by BY` prints."""
    from tracekit.analysis.gaps import Selection
    from tracekit.report.text import gaps_text

    return gaps_text([_page(path, by, Selection(), DEFAULT_TOP, lambda _: None)], _width())


def _machine_readable(
    paths: Sequence[Path], by: By, selection: Selection, top: int | None, as_json: bool
) -> str:
    from tracekit.readers import read

    def measure(path: Path, progress: Callable[[str], None]) -> GapReport:
        report = _report(read(path, progress=progress), path, by, selection)
        return replace(report, rows=report.rows[:top])

    reports = _measure(paths, measure)
    if as_json:
        from tracekit.report.json import gaps_json

        return gaps_json(reports) + "\n"
    from tracekit.report.csv import gaps_csv

    return gaps_csv(reports)


def _tasks(paths: Sequence[Path], top: int | None, as_json: bool, whole: bool) -> str:
    """What kernels recorded about their own tasks, from each trace's sidecar. Only of whole launches."""
    if not whole:
        raise UsageError("--by task reports whole launches: no --csv, and no choice of boundaries")
    from tracekit.analysis.tasks import TaskReport, measure_recorded
    from tracekit.capture.sidecar import find_sidecar, sidecar_path
    from tracekit.readers import read
    from tracekit.report.tasks import tasks_json, tasks_text

    def measure(path: Path, progress: Callable[[str], None]) -> list[TaskReport]:
        trace, beside = read(path, progress=progress), sidecar_path(path)
        sidecar = find_sidecar(path)
        if not sidecar or not sidecar.tasks:
            raise UnanswerableError(
                f"{path}: {beside.name} beside it holds no tasks: record a kernel that times its own, as"
                " `tracekit profile megakernel --timeline` does"
            )
        return measure_recorded(trace, sidecar.tasks, str(beside))

    reports = [report for one in _measure(paths, measure) for report in one]
    if as_json:
        return tasks_json(reports) + "\n"
    return "\n".join(tasks_text(report, top or DEFAULT_TOP, _width()) for report in reports)


def _page(path: Path, by: By, selection: Selection, top: int, progress: Callable[[str], None]) -> Page:
    from tracekit.readers import read
    from tracekit.report.text import Page

    trace = read(path, progress=progress)
    progress("gaps")
    return Page(_report(trace, path, "none", selection), _report(trace, path, by, selection), top)


def _report(trace: Trace, path: Path, by: By, selection: Selection) -> GapReport:
    """The gap report, with what the trace's sidecar knows of tracing."""
    from tracekit.analysis.gaps import gaps

    return replace(gaps(trace, by, selection), perturbation=_perturbation(path))


def _perturbation(trace: Path) -> tuple[Perturbation, ...]:
    """What tracing at the trace's level added to each mode that its sidecar timed untraced too."""
    from tracekit.analysis.perturbation import Perturbation
    from tracekit.capture.sidecar import find_sidecar

    sidecar = find_sidecar(trace)
    if sidecar is None:
        return ()
    found = []
    for timing in sidecar.timings:
        untraced = sidecar.timing(timing.mode, "untraced")
        if timing.level != sidecar.level or timing.kernel_ns is None:
            continue
        if untraced is not None and untraced.kernel_ns is not None:
            mode = f"tracekit:{timing.mode}"
            found.append(Perturbation(mode, timing.level, untraced.kernel_ns, timing.kernel_ns))
    return tuple(found)


def _measure(paths: Sequence[Path], work: Callable[[Path, Callable[[str], None]], T]) -> list[T]:
    """Each trace's result in the given order; several traces side by side, two at a time."""
    with _progress(paths) as say:
        if len(paths) == 1:
            return [work(paths[0], say)]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda path: work(path, say), paths))


@contextmanager
def _progress(paths: Sequence[Path]) -> Iterator[Callable[[str], None]]:
    """Says on a terminal's stderr what is being read, for large traces only."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if size < LARGE_FILE_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("opening") as status:
        yield lambda step: status.update(f"{size / 1e6:,.0f} MB: {step} (Ctrl-C stops)")


def _one_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")


def _width() -> int | None:
    return None if sys.stdout.isatty() else 140
