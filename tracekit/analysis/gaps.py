"""The gap report: boundaries selected, grouped and summed up."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.attribution import find_members, match_ranges
from tracekit.analysis.boundaries import Boundaries, Causes, find_boundaries, find_causes
from tracekit.analysis.checks import check_recording
from tracekit.analysis.idle import DeviceTime, GpuTime, measure_busy
from tracekit.analysis.perturbation import Perturbation
from tracekit.analysis.stats import Distribution, count_by, detect_tick, group, sum_by
from tracekit.codes import encode_rows
from tracekit.errors import UnanswerableError, UnknownNameError
from tracekit.trace import NONE, Codes, Recording, Trace, TraceWarning

if TYPE_CHECKING:
    import pandas as pd

By = Literal["range", "stream", "pair", "kernel", "graph", "none"]
Where = Literal["replay", "launch", "all"]
Window = tuple[int | None, int | None]
Key = dict[str, "str | int | None"]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]

CAUSES = ("host", "call", "queued", "unknown")
KEYS: dict[By, tuple[str, ...]] = {
    "range": ("range",),
    "stream": ("process", "device", "context", "stream"),
    "pair": ("previous", "next"),
    "kernel": ("kernel",),
    "graph": ("process", "graph"),
    "none": (),
}


@dataclass(frozen=True)
class Selection:
    """Which boundaries count. The default is all of them.

    `range_name` is a name or a regular expression for the whole name; a boundary counts when both
    kernels are in one instance. With a window [start, end) in nanoseconds of the trace's clock (None
    is an open side) a boundary counts when both kernels start inside it; busy and idle time are
    clipped to it, edges included.
    """

    range_name: str | None = None
    where: Where = "all"
    process: int | None = None
    device: int | None = None
    window: Window | None = None


@dataclass(frozen=True)
class MatchedRanges:
    """The NVTX ranges that `Selection.range_name` chose, and how their lengths spread."""

    count: int
    names: tuple[str, ...]
    min_ns: int
    median_ns: float
    max_ns: int


@dataclass(frozen=True)
class GapRow:
    """The boundaries of one group, replay and launch boundaries never mixed.

    `kernels` are those the boundaries lead into; a kernel with none before it (the first of a
    stream key or of a range instance) counts under `launch`.
    """

    key: Key
    where: Literal["replay", "launch"]
    kernels: int
    boundaries: int
    overlapping: int
    interrupted: int
    head_ns: float | None
    overlapping_median_ns: float | None  # of the negative gaps alone
    gap_ns: Distribution
    white_ns: int
    overlap_ns: int
    kernel_median_ns: float
    kernel_sum_ns: int
    causes_ns: dict[str, int] | None


@dataclass(frozen=True)
class GapReport:
    """What `tracekit gaps` answers for one trace; rows by white space, largest first."""

    recording: Recording
    span_ns: int
    kernels: int
    opaque_replays: int
    tick_ns: int | None
    by: By
    selection: Selection
    matched_ranges: MatchedRanges | None
    devices: tuple[DeviceTime, ...]
    gpus: tuple[GpuTime, ...]
    rows: tuple[GapRow, ...]
    warnings: tuple[TraceWarning, ...]
    perturbation: tuple[Perturbation, ...] = ()  # where a sidecar of the recording knows it

    @property
    def table(self) -> pd.DataFrame:
        """The rows as a DataFrame: key columns first, distributions as `gap_median_ns` and so on."""
        import pandas as pd

        return pd.DataFrame([flatten(row) for row in self.rows], columns=flat_columns(self.by))

    def _repr_html_(self) -> str:
        rows: str = self.table.to_html(index=False, escape=True, max_rows=20)
        return f"<p>{html.escape(self.recording.file)}: gaps by {self.by}</p>{rows}"


def gaps(trace: Trace, by: By = "pair", selection: Selection | None = None) -> GapReport:
    """Measure the gaps of a trace, grouped `by` range, stream, pair, kernel, graph or none.

    Raises `UnknownNameError` for a range, process or device that matches nothing (the message lists
    what there is) and `UnanswerableError` for a window without any GPU activity.
    """
    selection = selection or Selection()
    window = _close(trace, selection.window)
    boundaries = find_boundaries(trace)
    chosen, matched = _select(trace, boundaries, selection, window)
    rows = _rows(trace, boundaries, GROUPINGS[by](trace, chosen), selection.where)
    busy = measure_busy(trace, window)
    return GapReport(
        recording=trace.recording,
        span_ns=window[1] - window[0] if window else trace.span_ns,
        kernels=len(trace.kernels),
        opaque_replays=len(trace.opaque_replays),
        tick_ns=detect_tick(trace.kernels.end_ns - trace.kernels.start_ns),
        by=by,
        selection=selection,
        matched_ranges=matched,
        devices=busy.devices,
        gpus=busy.gpus,
        rows=rows,
        warnings=check_recording(trace),
    )


COUNTS = ("kernels", "boundaries", "overlapping", "interrupted", "head_ns", "overlapping_median_ns")
SUMS = ("white_ns", "overlap_ns", "kernel_median_ns", "kernel_sum_ns")


def flatten(row: GapRow) -> dict[str, object]:
    """A row without nesting, for tables and CSV; the columns are `flat_columns`."""
    causes = row.causes_ns or dict.fromkeys(CAUSES)
    return {
        **row.key,
        "where": row.where,
        **{name: getattr(row, name) for name in COUNTS},
        **{f"gap_{name}_ns": value for name, value in asdict(row.gap_ns).items()},
        **{name: getattr(row, name) for name in SUMS},
        **{f"{cause}_ns": causes[cause] for cause in CAUSES},
    }


def flat_columns(by: By) -> list[str]:
    """The columns of a flattened row of that grouping, in order."""
    gap = [f"gap_{column.name}_ns" for column in fields(Distribution)]
    return [*KEYS[by], "where", *COUNTS, *gap, *SUMS, *(f"{cause}_ns" for cause in CAUSES)]


# Selecting


@dataclass(frozen=True)
class _Chosen:
    """Kernels that count, and which of the boundaries into them do."""

    kernels: Mask
    boundaries: Mask
    ranges: Rows | None  # only these ranges


def _close(trace: Trace, window: Window | None) -> tuple[int, int] | None:
    """The window with its open sides at the ends of the trace."""
    if window is None:
        return None
    low = trace.start_ns if window[0] is None else window[0]
    high = trace.end_ns if window[1] is None else window[1]
    tables = (trace.kernels, trace.copies, trace.opaque_replays)
    if not any(((table.start_ns < high) & (table.end_ns > low)).any() for table in tables):
        raise UnanswerableError(
            f"no GPU activity in the window {low}..{high} ns; the trace has some from {trace.start_ns} to "
            f"{trace.end_ns} ns"
        )
    return low, high


def _select(
    trace: Trace, boundaries: Boundaries, selection: Selection, window: tuple[int, int] | None
) -> tuple[_Chosen, MatchedRanges | None]:
    kernels = _on_stream(trace, selection) & _in_window(trace, window)
    into = np.zeros(len(kernels), dtype=bool)
    into[1:] = kernels[1:] & kernels[:-1]
    into &= boundaries.exists
    if selection.range_name is None:
        return _Chosen(kernels, into, None), None
    ranges = match_ranges(trace, selection.range_name)
    members = find_members(trace, ranges)
    kernels &= _marked(len(kernels), members.kernel)
    into &= _marked(len(kernels), members.kernel[members.continues])
    return _Chosen(kernels, into, ranges), _describe_ranges(trace, ranges)


def _marked(length: int, rows: Rows) -> Mask:
    mask = np.zeros(length, dtype=bool)
    mask[rows] = True
    return mask


def _on_stream(trace: Trace, selection: Selection) -> Mask:
    keys = trace.streams
    for word, wanted in (("process", selection.process), ("device", selection.device)):
        there = sorted({getattr(key, word) for key in keys})
        if wanted is not None and wanted not in there:
            raise UnknownNameError(f"no {word} {wanted} in the trace; there is: {', '.join(map(str, there))}")
    good = [
        selection.process in (None, key.process) and selection.device in (None, key.device) for key in keys
    ]
    if all(good):
        return np.ones(len(trace.kernels), dtype=bool)
    return np.array(good, dtype=bool)[trace.kernels.stream]


def _in_window(trace: Trace, window: tuple[int, int] | None) -> Mask:
    kernels = trace.kernels
    if window is None:
        return np.ones(len(kernels), dtype=bool)
    low, high = window
    return (kernels.start_ns >= low) & (kernels.start_ns < high)


def _describe_ranges(trace: Trace, rows: Rows) -> MatchedRanges:
    length = (trace.ranges.end_ns - trace.ranges.start_ns)[rows]
    names = tuple(trace.range_names[i] for i in np.unique(trace.ranges.name[rows]))
    return MatchedRanges(len(rows), names, int(length.min()), float(np.median(length)), int(length.max()))


# Grouping


@dataclass(frozen=True)
class _Grouping:
    """(kernel, group) pairs; `into` says that the boundary into the kernel belongs to the group."""

    kernel: Rows | slice
    code: Codes
    into: Mask
    keys: Callable[[int], Key]
    groups: int


def _by_columns(chosen: _Chosen, columns: list[NDArray[np.int64]], spell: Callable[..., Key]) -> _Grouping:
    everything = bool(chosen.kernels.all())
    kernel = slice(None) if everything else np.flatnonzero(chosen.kernels)
    code, distinct = encode_rows([column[kernel] for column in columns])
    values = [column.tolist() for column in distinct]
    return _Grouping(
        kernel, code, chosen.boundaries[kernel], lambda g: spell(*(v[g] for v in values)), len(values[0])
    )


def _by_none(trace: Trace, chosen: _Chosen) -> _Grouping:
    return _by_columns(chosen, [np.zeros(len(trace.kernels), dtype=np.int64)], lambda _: {})


def _by_stream(trace: Trace, chosen: _Chosen) -> _Grouping:
    return _by_columns(
        chosen, [trace.kernels.stream.astype(np.int64)], lambda code: asdict(trace.streams[code])
    )


def _by_kernel(trace: Trace, chosen: _Chosen) -> _Grouping:
    return _by_columns(
        chosen, [trace.kernels.name.astype(np.int64)], lambda code: {"kernel": trace.names[code]}
    )


def _by_pair(trace: Trace, chosen: _Chosen) -> _Grouping:
    following = trace.kernels.name.astype(np.int64)
    previous = np.concatenate((following[:0] if not len(following) else [-1], following[:-1]))
    only = _Chosen(chosen.boundaries, chosen.boundaries, None)  # a pair needs both kernels
    return _by_columns(
        only, [previous, following], lambda a, b: {"previous": trace.names[a], "next": trace.names[b]}
    )


def _by_graph(trace: Trace, chosen: _Chosen) -> _Grouping:
    """By executable graph; an edge between two graphs, or to a kernel of none, has no graph."""
    node, stream = trace.kernels.graph_node, trace.kernels.stream
    graph = np.where(node == NONE, NONE, node >> 32)  # pytorch#191689
    graph[1:][(graph[1:] != graph[:-1]) & (stream[1:] == stream[:-1])] = NONE
    process = np.array([key.process for key in trace.streams], dtype=np.int64)[stream]
    return _by_columns(
        chosen, [process, graph], lambda p, g: {"process": p, "graph": None if g == NONE else g}
    )


def _by_range(trace: Trace, chosen: _Chosen) -> _Grouping:
    ranges = chosen.ranges if chosen.ranges is not None else np.arange(len(trace.ranges))
    members = find_members(trace, ranges)
    kept = chosen.kernels[members.kernel]
    name = trace.ranges.name[members.range_row[kept]]
    into = members.continues[kept] & chosen.boundaries[members.kernel[kept]]
    name, kernel, into = _once_per_name(name, members.kernel[kept], into)
    return _Grouping(
        kernel, name, into, lambda code: {"range": trace.range_names[code]}, len(trace.range_names)
    )


def _once_per_name(name: Codes, kernel: Rows, into: Mask) -> tuple[Codes, Rows, Mask]:
    """A kernel in two ranges of one name, one inside the other, counts once under that name."""
    order = np.lexsort((~into, kernel, name))
    name, kernel, into = name[order], kernel[order], into[order]
    first = np.ones(len(name), dtype=bool)
    first[1:] = (name[1:] != name[:-1]) | (kernel[1:] != kernel[:-1])
    return name[first], kernel[first], into[first]


GROUPINGS: dict[By, Callable[[Trace, _Chosen], _Grouping]] = {
    "range": _by_range,
    "stream": _by_stream,
    "pair": _by_pair,
    "kernel": _by_kernel,
    "graph": _by_graph,
    "none": _by_none,
}


# Summing up


def _rows(trace: Trace, boundaries: Boundaries, grouping: _Grouping, where: Where) -> tuple[GapRow, ...]:
    causes = find_causes(trace, boundaries)
    replay = boundaries.replay[grouping.kernel] & grouping.into
    rows: list[GapRow] = []
    if where != "launch" and replay.any():
        rows += _rows_of("replay", trace, boundaries, None, _restrict(grouping, replay))
    if where != "replay":
        rows += _rows_of("launch", trace, boundaries, causes, _restrict(grouping, ~replay))
    return tuple(sorted(rows, key=lambda row: -row.white_ns))


def _restrict(grouping: _Grouping, kept: Mask) -> _Grouping:
    if kept.all():
        return grouping
    kernel = np.flatnonzero(kept) if isinstance(grouping.kernel, slice) else grouping.kernel[kept]
    return replace(grouping, kernel=kernel, code=grouping.code[kept], into=grouping.into[kept])


def _rows_of(
    where: Literal["replay", "launch"],
    trace: Trace,
    boundaries: Boundaries,
    causes: Causes | None,
    grouping: _Grouping,
) -> list[GapRow]:
    """One row a group that has boundaries of this kind."""
    entered = _restrict(grouping, grouping.into)
    rows, code, groups = entered.kernel, entered.code, entered.groups
    gap_ns = boundaries.gap_ns[rows]
    duration = group(grouping.code, _durations(trace, grouping.kernel), groups)
    columns: dict[str, list[Any]] = {
        "kernels": duration.counts.tolist(),
        "kernel_median_ns": duration.percentiles(0.5).tolist(),
        "kernel_sum_ns": duration.totals.tolist(),
        "overlapping_median_ns": _medians(code, gap_ns, gap_ns < 0, groups),
        **_sums(trace, boundaries, entered),
    }
    heads = _medians(code, gap_ns, boundaries.head[rows], groups)
    columns["head_ns"] = heads if where == "replay" else [None] * groups
    split = _split_causes(causes, entered) if causes else [None] * groups
    return [
        GapRow(
            key=grouping.keys(g),
            where=where,
            gap_ns=distribution,
            causes_ns=split[g],
            **{name: values[g] for name, values in columns.items()},
        )
        for g, distribution in enumerate(group(code, gap_ns, groups).distributions())
        if distribution is not None
    ]


def _sums(trace: Trace, boundaries: Boundaries, entered: _Grouping) -> dict[str, list[int]]:
    """Counts and sums of each group's boundaries."""
    rows, code, groups = entered.kernel, entered.code, entered.groups
    gap_ns = boundaries.gap_ns[rows]
    overlap_ns = np.minimum(np.maximum(-gap_ns, 0), _durations(trace, rows))
    return {
        "boundaries": np.bincount(code, minlength=groups).tolist(),
        "overlapping": count_by(code, gap_ns < 0, groups).tolist(),
        "interrupted": count_by(code, boundaries.interrupted[rows], groups).tolist(),
        "white_ns": sum_by(code, np.maximum(gap_ns, 0), groups).tolist(),
        "overlap_ns": sum_by(code, overlap_ns, groups).tolist(),
    }


def _medians(code: Codes, gap_ns: NDArray[np.int64], mask: Mask, groups: int) -> list[float | None]:
    """The median of the marked gaps of each group, None where it has none."""
    medians = group(code[mask], gap_ns[mask], groups).percentiles(0.5).tolist()
    return [None if math.isnan(median) else median for median in medians]


def _split_causes(causes: Causes, entered: _Grouping) -> list[dict[str, int] | None]:
    """Each group's white space by cause."""
    columns = [getattr(causes, f"{cause}_ns")[entered.kernel] for cause in CAUSES]
    sums = [sum_by(entered.code, values, entered.groups).tolist() for values in columns]
    return [dict(zip(CAUSES, each, strict=True)) for each in zip(*sums, strict=True)]


def _durations(trace: Trace, rows: Rows | slice) -> NDArray[np.int64]:
    return trace.kernels.end_ns[rows] - trace.kernels.start_ns[rows]
