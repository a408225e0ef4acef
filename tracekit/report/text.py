"""The gap report in the terminal: the answer in words, one table, then what to be careful about."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracekit.analysis.checks import UNRELIABLE_IDLE
from tracekit.analysis.gaps import CAUSES, GapReport, GapRow
from tracekit.analysis.idle import DeviceTime, GpuTime
from tracekit.report.names import printable, shorten_all
from tracekit.trace import TraceWarning
from tracekit.units import format_ns, format_share

NUMBERS_WIDTH = 100  # of the columns beside the names
NAME_WIDTH = (20, 64)  # least and most
SPOKEN_CAUSE = {"host": "host", "call": "launch call", "queued": "queued", "unknown": "unknown"}
TITLES = {
    "range": "By NVTX range",
    "stream": "By stream",
    "pair": "By pair of kernels",
    "kernel": "By the kernel after the gap",
    "graph": "By executable graph",
    "none": "All boundaries",
}
NOT_THE_COST = (
    "White space is not what a boundary costs a step: a kernel's recorded duration holds its own launch and "
    "drain. `tracekit estimate` keeps the two apart."
)


@dataclass(frozen=True)
class Page:
    """One trace on the screen: `overview` is grouped by none, `report` as the user asked."""

    overview: GapReport
    report: GapReport
    top: int | None


def gaps_text(pages: Sequence[Page], width: int | None = None) -> str:
    """All traces one after another, then a table of all of them where there are several."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, emoji=False, markup=False)
    for page in pages:
        _print_page(console, page)
    if len(pages) > 1:
        console.print(_combined(pages))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def headline(overview: GapReport) -> list[str]:
    """The answer in sentences: what was recorded, idle share, gaps by kind with causes, overlap."""
    sentences = [_recorded(overview), *_idle(overview)]
    by_kind = {row.where: row for row in overview.rows}
    if overview.matched_ranges:
        sentences.append(_matched(overview))
    for where in ("replay", "launch"):
        if where in by_kind:
            sentences += _kind(by_kind[where], overview.tick_ns)
    if not by_kind:
        sentences.append("No two kernels follow each other here: there is no boundary to measure.")
    return sentences


def cautions(report: GapReport) -> list[str]:
    """What the numbers must not be taken for, then the warnings of the recording."""
    notes = [NOT_THE_COST, _traced_how(report)]
    if any(row.where == "launch" and not row.overlapping for row in report.rows):
        notes.append(
            "No overlap between launched kernels does not mean no PDL: tracing single launches may hide it."
        )
    return notes + [_warning(warning) for warning in report.warnings]


def _warning(warning: TraceWarning) -> str:
    if warning.code == "recording":
        times = f" ({warning.count} times)" if warning.count > 1 else ""
        return f'The recording says: "{printable(warning.message)}"{times}'
    return (
        f"{warning.count:,} {printable(warning.message)}" if warning.count > 1 else printable(warning.message)
    )


def _print_page(console: Console, page: Page) -> None:
    for sentence in headline(page.overview):
        console.print(Text(sentence))
    console.print()
    rows = page.report.rows[: page.top]
    if rows and page.report.by != "none":
        console.print(_table(page.report, rows, console.width))
        left = len(page.report.rows) - len(rows)
        if left:
            console.print(Text(f"{left:,} more rows; --top {len(page.report.rows)} shows all."))
        console.print()
    for note in cautions(page.overview):
        console.print(Text(f"- {note}"))
    console.print()


# Sentences


def _recorded(report: GapReport) -> str:
    recording = report.recording
    used = {gpu.device for gpu in report.gpus} or {gpu.device for gpu in recording.gpus}
    names = [printable(gpu.name) for gpu in recording.gpus if gpu.device in used]
    version = f" {recording.nsys_version or 'version unknown'}" if recording.product == "nsys" else ""
    parts = [_count_names(names) or "GPU unknown", recording.product + version]
    if recording.schema_version:
        parts[-1] += f" (schema {recording.schema_version})"
    parts.append(f"CUDA graphs traced by {recording.graph_trace or '? (not recorded)'}")
    parts.append(f"clock tick {report.tick_ns} ns" if report.tick_ns else "no clock tick seen")
    return f"{printable(recording.file)}: " + ", ".join(parts)


def _count_names(names: list[str]) -> str:
    return ", ".join(
        name if names.count(name) == 1 else f"{names.count(name)} x {name}" for name in dict.fromkeys(names)
    )


def _idle(report: GapReport) -> list[str]:
    where = "of the window" if report.selection.window else "of the span"
    sentence = f"{report.kernels:,} kernels in the trace; {_span(report)}."
    if report.opaque_replays:
        sentence += (
            f" {report.opaque_replays:,} opaque graph replays count as busy; their kernels are not in it."
        )
    sentences = [sentence, *(_idle_sentence(time, where) for time in _times(report))]
    if any(warning.code in UNRELIABLE_IDLE for warning in report.warnings):
        sentences.append("Idle time is unreliable here: graph replays seem to lack kernels, see below.")
    return sentences


def _span(report: GapReport) -> str:
    """What idle time is a share of."""
    length = format_ns(report.span_ns)
    if report.selection.window is None:
        return f"span {length}, from the first GPU activity to the last"
    low, high = report.selection.window
    ends = [format_ns(side) if side is not None else "the edge" for side in (low, high)]
    return f"window from {ends[0]} to {ends[1]} of its clock, {length}, edges included"


def _times(report: GapReport) -> Sequence[DeviceTime | GpuTime]:
    """By physical GPU where several processes share one, else by device of a process."""
    return report.gpus if len(report.gpus) < len(report.devices) and report.gpus else report.devices


def _idle_sentence(time: DeviceTime | GpuTime, where: str) -> str:
    idle = f"idle {format_share(time.idle_ns, time.span_ns)} {where} ({format_ns(time.idle_ns)})"
    if isinstance(time, GpuTime):
        return f"GPU {time.device}, all processes: {idle}."
    copies = f", {format_ns(time.copy_only_ns)} of it copies alone" if time.copy_only_ns else ""
    return f"Device {time.device} of process {time.process}: {idle}, busy {format_ns(time.busy_ns)}{copies}."


def _matched(report: GapReport) -> str:
    matched = report.matched_ranges
    assert matched is not None
    names = ", ".join(printable(name) for name in matched.names[:3])
    more = f" and {len(matched.names) - 3} more" if len(matched.names) > 3 else ""
    spread = (
        f"{format_ns(matched.min_ns)} to {format_ns(matched.max_ns)}, median {format_ns(matched.median_ns)}"
    )
    return f"Only the {matched.count:,} ranges {names}{more} ({spread}) from here on."


def _kind(row: GapRow, tick_ns: int | None) -> list[str]:
    gap = row.gap_ns
    place = "Inside graph replays" if row.where == "replay" else "Between launches"
    sentence = (
        f"{place}: {row.boundaries:,} boundaries, median gap {_gap(gap.median, tick_ns)} "
        f"(p10 {format_ns(gap.p10)}, p90 {format_ns(gap.p90)}), white space {format_ns(row.white_ns)}"
    )
    if row.causes_ns and row.white_ns:
        shares = [
            f"{SPOKEN_CAUSE[cause]} {format_share(row.causes_ns[cause], row.white_ns)}"
            for cause in CAUSES
            if row.causes_ns[cause]
        ]
        sentence += f", caused by: {', '.join(shares)}"
    if row.head_ns is not None:
        sentence += f"; first boundary of a replay: median {format_ns(row.head_ns, signed=True)}"
    sentences = [sentence + "."]
    if row.overlapping:
        share = format_share(row.overlapping, row.boundaries)
        sentences.append(
            f"  Overlap seen at {row.overlapping:,} of them ({share}), median "
            f"{format_ns(row.overlapping_median_ns)}, {format_ns(row.overlap_ns)} in all: PDL, or an overrun."
        )
    if row.interrupted:
        sentences.append(f"  {row.interrupted:,} are interrupted by a copy, a memset or a host wait.")
    return sentences


def _gap(median_ns: float, tick_ns: int | None) -> str:
    if not tick_ns or tick_ns < 16 or not 0 < abs(median_ns) < 2.5 * tick_ns:
        return format_ns(median_ns)
    ticks = round(abs(median_ns) / tick_ns)
    return f"{format_ns(median_ns)}, which is {'one tick' if ticks <= 1 else 'two ticks'} of the clock,"


def _traced_how(report: GapReport) -> str:
    mode = report.recording.graph_trace
    if report.perturbation:
        return _perturbation(report)
    if mode == "node":
        return (
            "Recorded with node-level graph tracing, which itself lengthens every kernel of a replay; by how "
            "much is known only where the same work was also timed untraced."
        )
    if mode == "graph" and report.opaque_replays:
        return "Recorded with graph-level tracing: what is inside a replay is not in the file."
    return (
        "Tracing adds to what it measures; by how much is known only where the work was also timed untraced."
    )


def _perturbation(report: GapReport) -> str:
    level = report.perturbation[0].level
    each = [
        f"{format_ns(p.added_ns, signed=True)} in {printable(p.range_name)} "
        f"(untraced {format_ns(p.untraced_ns)})"
        for p in report.perturbation
    ]
    shown = ", ".join(each[:4]) + (f" and {len(each) - 4} more" if len(each) > 4 else "")
    return f"What {level}-level tracing added to each kernel, measured when this was recorded: {shown}."


# Tables


def _table(report: GapReport, rows: Sequence[GapRow], width: int) -> Table:
    table = _plain_table(TITLES[report.by])
    least, most = NAME_WIDTH
    name_width = max(least, min(most, width - NUMBERS_WIDTH))
    names = shorten_all([v for row in rows for v in row.key.values() if isinstance(v, str)], name_width)
    pair = report.by == "pair"
    for column in ("pair",) if pair else rows[0].key:
        table.add_column(column, no_wrap=True)
    table.add_column("where")
    for column in ("bounds", "median", "p10", "p90", "head", "overlap", "white space", "of it"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("main cause", no_wrap=True)
    added = {p.range_name: format_ns(p.added_ns, signed=True) for p in report.perturbation}
    if added and report.by == "range":
        table.add_column("tracing", justify="right", no_wrap=True)
    total = sum(row.white_ns for row in report.rows)
    for row in rows:
        key = [
            names.get(v, "-") if isinstance(v, str) else "-" if v is None else str(v)
            for v in row.key.values()
        ]
        spelled = ["\n> ".join(key)] if pair else key
        cells = [*spelled, *_cells(row, total)]
        if added and report.by == "range":
            cells.append(added.get(str(row.key["range"]), "-"))
        table.add_row(*map(Text, cells))
    return table


def _plain_table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False, show_edge=False)


def _cells(row: GapRow, total_white_ns: int) -> list[str]:
    gap = row.gap_ns
    return [
        row.where,
        f"{row.boundaries:,}",
        *(format_ns(value) for value in (gap.median, gap.p10, gap.p90, row.head_ns)),
        _overlap(row),
        format_ns(row.white_ns),
        format_share(row.white_ns, total_white_ns),
        _main_cause(row),
    ]


def _overlap(row: GapRow) -> str:
    """PDL is in no column of a trace: what can be said is how many boundaries overlap, and by how much."""
    if not row.overlapping:
        return "none seen"
    return f"{format_share(row.overlapping, row.boundaries)} {format_ns(row.overlapping_median_ns)}"


def _main_cause(row: GapRow) -> str:
    if not row.causes_ns or not row.white_ns:
        return "-"
    cause = max(CAUSES, key=lambda c: row.causes_ns[c] if row.causes_ns else 0)
    return f"{SPOKEN_CAUSE[cause]} {format_share(row.causes_ns[cause], row.white_ns)}"


def _combined(pages: Sequence[Page]) -> Table:
    table = _plain_table("All traces")
    table.add_column("file", no_wrap=True)
    for column in ("kernels", "span", "idle", "where", "bounds", "median", "p90", "white space"):
        table.add_column(column, justify="right", no_wrap=True)
    for page in pages:
        report = page.overview
        span = sum(d.span_ns for d in report.devices)
        idle = format_share(sum(d.idle_ns for d in report.devices), span)
        start = [printable(report.recording.file), f"{report.kernels:,}", format_ns(report.span_ns), idle]
        for row in report.rows:
            gap = row.gap_ns
            cells = [
                row.where,
                f"{row.boundaries:,}",
                format_ns(gap.median),
                format_ns(gap.p90),
                format_ns(row.white_ns),
            ]
            table.add_row(*(Text(cell) for cell in (*start, *cells)))
    return table
