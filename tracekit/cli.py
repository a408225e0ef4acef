"""The command line: each command reads, analyses, renders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tracekit.errors import TracekitError, UsageError

if TYPE_CHECKING:
    from tracekit.analysis.gaps import By, Selection, Window
    from tracekit.report.text import Page

T = TypeVar("T")
LARGE_FILE_BYTES = 100_000_000  # from here on reading takes long enough to say what it does


class ByOption(StrEnum):
    """What `gaps --by` groups by."""

    RANGE = "range"
    STREAM = "stream"
    PAIR = "pair"
    KERNEL = "kernel"
    GRAPH = "graph"
    NONE = "none"


class WhereOption(StrEnum):
    """Which boundaries `gaps --where` keeps."""

    REPLAY = "replay"
    LAUNCH = "launch"
    ALL = "all"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")]


def build_app(command: str | None = None) -> typer.Typer:
    """All commands; for `gaps` only that one, since loading the others takes longer than a small trace."""
    app = typer.Typer(
        help="Measures the real gap between GPU kernels, and what it costs a decode step.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(lambda: None)
    app.command()(gaps)
    if command != "gaps":
        from tracekit import cli_capture
        from tracekit.cli_estimate import estimate

        app.command()(estimate)
        cli_capture.register(app)
    return app


def gaps(
    traces: Annotated[list[Path], typer.Argument(help="nsys SQLite exports.", metavar="TRACE...")],
    by: Annotated[ByOption, typer.Option(help="Group the boundaries.")] = ByOption.PAIR,
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
    if as_json or as_csv:
        print(_machine_readable(paths, by.value, selection, top, as_json), end="")
    else:
        from tracekit.report.text import gaps_text

        pages = _measure(paths, lambda path, say: _page(path, by.value, selection, top or 10, say))
        print(gaps_text(pages, _width()), end="")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. The one place where tracekit's errors are caught."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        build_app(words[0] if words else None)(args=words)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except TracekitError as error:
        print(f"tracekit: {_one_line(error)}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("tracekit: not enough memory for this trace; choose a smaller one", file=sys.stderr)
        return 1
    return 0


def run() -> None:
    """The installed command."""
    sys.exit(main())


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
    """The trace to read."""
    return path


def _machine_readable(
    paths: Sequence[Path], by: By, selection: Selection, top: int | None, as_json: bool
) -> str:
    from dataclasses import replace

    from tracekit.analysis.gaps import GapReport, gaps
    from tracekit.readers import read

    def measure(path: Path, progress: Callable[[str], None]) -> GapReport:
        report = gaps(read(path, progress=progress), by, selection)
        return replace(report, rows=report.rows[:top])

    reports = _measure(paths, measure)
    if as_json:
        from tracekit.report.json import gaps_json

        return gaps_json(reports) + "\n"
    from tracekit.report.csv import gaps_csv

    return gaps_csv(reports)


def _page(path: Path, by: By, selection: Selection, top: int, progress: Callable[[str], None]) -> Page:
    from tracekit.analysis.gaps import gaps
    from tracekit.readers import read
    from tracekit.report.text import Page

    trace = read(path, progress=progress)
    progress("gaps")
    return Page(gaps(trace, "none", selection), gaps(trace, by, selection), top)


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


def _one_line(error: Exception) -> str:
    from tracekit.report.names import printable

    return printable(" ".join(str(error).split()))
