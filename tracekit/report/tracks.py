"""The tracks of a timeline: which rows it has, and the intervals on each, as columns of integers.

Every table is sorted by track, then start. A track with one lane has intervals that never overlap; a
stream whose kernels do (PDL) has more lanes, each free of overlap, so that all are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from tracekit.analysis.attribution import find_members
from tracekit.analysis.boundaries import Boundaries, Causes
from tracekit.codes import encode, encode_rows
from tracekit.intervals import signed_gaps
from tracekit.report.names import printable
from tracekit.trace import NONE, WHOLE_CONTEXT, Codes, Ints, StreamKey, Trace

Kind = Literal["range", "call", "wait", "replay", "opaque", "kernel", "copy", "sm"]

NO_BOUNDARY, HOST, CALL, QUEUED, UNKNOWN, REPLAY = range(6)
INTERRUPTED = 8  # added to the cause
ORDER: tuple[Kind, ...] = ("range", "call", "replay", "opaque", "kernel", "copy", "wait", "sm")
HOST_ROW = -1  # in a label's place: before every device, or before every stream


@dataclass(frozen=True)
class Label:
    """What a track is called and stands under, and its place: (process, device, stream or thread)."""

    group: str
    text: str
    place: tuple[int, int, int]


@dataclass(frozen=True)
class Track:
    """Rows `low` to `high` of its table; `lanes` is how many of them overlap at most."""

    label: Label
    low: int
    high: int
    lanes: int


@dataclass(frozen=True)
class TrackTable:
    """Intervals of one kind by track and start, in nanoseconds after the page's origin.

    `gap_ns` is the start minus the latest end of any earlier interval of the track (of the origin for
    the first), so that the starts follow from it. `name` is a code into the page's names. `extra` holds
    what this kind has besides, `-1` where there is nothing.
    """

    kind: Kind
    tracks: tuple[Track, ...]
    gap_ns: Ints
    duration_ns: Ints
    lane: Codes
    name: Codes
    extra: dict[str, Ints]


@dataclass(frozen=True)
class Tracks:
    """All tables of a trace, the names they use (fit to print), and the shapes of its kernels."""

    origin_ns: int
    end_ns: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # grid x, y, z, block x, y, z
    tables: tuple[TrackTable, ...]

    def table(self, kind: Kind) -> TrackTable | None:
        """The table of a kind, None where the trace has nothing of it."""
        return next((table for table in self.tables if table.kind == kind), None)


@dataclass(frozen=True)
class _Rows:
    """Intervals before they are laid out, in any order; `track` is an index into `labels`."""

    kind: Kind
    labels: list[Label]
    track: Codes
    start_ns: Ints
    end_ns: Ints
    name: Codes
    extra: dict[str, Ints]


def lay_out_tracks(trace: Trace, boundaries: Boundaries, causes: Causes) -> Tracks:
    """Every kernel, copy, opaque replay, replay, host call, host wait and range of the trace, by track."""
    names = _Names()
    origin_ns, end_ns = _extent(trace)
    ranges, range_at = _lay_out(_range_rows(trace, names), origin_ns)
    calls, call_at = _lay_out(_call_rows(trace, names), origin_ns)
    replay_rows, replay_of = _replay_rows(trace, names)
    replays, replay_at = _lay_out(replay_rows, origin_ns)
    shapes, shape = _shapes(trace)
    extra = {
        "call": _look_up(call_at, trace.kernels.call),
        "range": _look_up(range_at, _innermost_range(trace)),
        "replay": _look_up(replay_at, replay_of),
        "shape": shape.astype(np.int64),
        "cause": _cause_codes(boundaries, causes),
    }
    others = [_lay_out(make(trace, names), origin_ns)[0] for make in (_wait_rows, _opaque_rows, _copy_rows)]
    kernels = _lay_out_kernels(trace, names, origin_ns, extra)
    tables = sorted((ranges, calls, replays, *others, kernels), key=lambda table: ORDER.index(table.kind))
    used = tuple(table for table in tables if len(table.gap_ns))
    return Tracks(origin_ns, end_ns, names.listed(), shapes, used)


def lay_out_sms(sm: Ints, kind: Ints, start_ns: Ints, duration_ns: Ints) -> tuple[Tracks, Codes]:
    """Records of a kernel's inside, a track an SM, and the place of each record in the table."""
    code, numbers = encode(sm)
    labels = [Label("inside the kernel", f"SM {number}", (0, 0, number)) for number in numbers.tolist()]
    rows = _Rows("sm", labels, code, start_ns, start_ns + duration_ns, kind.astype(np.int32), {})
    table, place = _lay_out(rows, 0)
    return Tracks(0, int(rows.end_ns.max()), ("fetch", "wait", "execute"), (), (table,)), place


def assign_lanes(start_ns: Ints, end_ns: Ints) -> Codes:
    """The lowest free lane of each interval; intervals are in order of start.

    Where nothing earlier still runs the lane is 0, so only the overlapping ones need a look each.
    """
    lane = np.zeros(len(start_ns), dtype=np.int32)
    overlapping = np.flatnonzero(signed_gaps(start_ns, end_ns) < 0) + 1
    if not len(overlapping):
        return lane
    runs = np.split(overlapping, np.flatnonzero(np.diff(overlapping) > 1) + 1)
    for run in runs:
        low, high = int(run[0]) - 1, int(run[-1]) + 1
        lane[low:high] = _free_lanes(start_ns[low:high].tolist(), end_ns[low:high].tolist())
    return lane


def _free_lanes(starts: list[int], ends: list[int]) -> list[int]:
    busy_until: list[int] = []
    lanes = []
    for start, end in zip(starts, ends, strict=True):
        for lane, until in enumerate(busy_until):
            if until <= start:
                busy_until[lane] = end
                break
        else:
            lane = len(busy_until)
            busy_until.append(end)
        lanes.append(lane)
    return lanes


class _Names:
    """Names in the order of their first use, made fit to print once."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        return self._codes.setdefault(printable(name), len(self._codes))

    def recode(self, codes: Codes, names: Sequence[str]) -> Codes:
        """The page's codes in place of the trace's; only names that occur get one."""
        table = np.zeros(len(names), dtype=np.int32)
        for used in np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist() if len(codes) else ():
            table[used] = self.code(names[used])
        return table[codes] if len(codes) else codes

    def listed(self) -> tuple[str, ...]:
        return tuple(self._codes)


def _extent(trace: Trace) -> tuple[int, int]:
    tables = (trace.kernels, trace.copies, trace.opaque_replays, trace.calls, trace.ranges, trace.waits)
    there = [table for table in tables if len(table)]
    return min(int(t.start_ns.min()) for t in there), max(int(t.end_ns.max()) for t in there)


def _lay_out(rows: _Rows, origin_ns: int) -> tuple[TrackTable, Codes]:
    """The table, and the place of each given row in it. Overlapping intervals get tracks of their own."""
    order = np.lexsort((-rows.end_ns, rows.start_ns, rows.track)).astype(np.intp)
    depth = np.zeros(len(order), dtype=np.int32)
    for low, high in _slices(rows.track[order]):
        part = order[low:high]
        depth[low:high] = assign_lanes(rows.start_ns[part], rows.end_ns[part])
    if depth.any():
        again = np.lexsort((rows.start_ns[order], depth, rows.track[order]))
        order, depth = order[again], depth[again]
    owner = rows.track[order].astype(np.int64) * (int(depth.max(initial=0)) + 1) + depth
    tracks = tuple(
        Track(_deeper(rows.labels[int(rows.track[order[low]])], int(depth[low])), low, high, 1)
        for low, high in _slices(owner)
    )
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    start, end = rows.start_ns[order], rows.end_ns[order]
    gap = _gaps(start, end, tracks, origin_ns)
    extra = {name: values[order] for name, values in rows.extra.items()}
    lane = np.zeros(len(order), dtype=np.int32)
    return TrackTable(rows.kind, tracks, gap, end - start, lane, rows.name[order], extra), place


def _deeper(label: Label, depth: int) -> Label:
    return label if depth == 0 else replace(label, text=f"{label.text}, level {depth + 1}")


def _lay_out_kernels(trace: Trace, names: _Names, origin_ns: int, extra: dict[str, Ints]) -> TrackTable:
    """Kernels keep the order of the trace, so that row `i - 1` is the one before on the stream."""
    kernels = trace.kernels
    lane = np.zeros(len(kernels), dtype=np.int32)
    labels, tracks = _on_streams(trace), []
    for low, high in _slices(kernels.stream):
        lane[low:high] = assign_lanes(kernels.start_ns[low:high], kernels.end_ns[low:high])
        label = labels[int(kernels.stream[low])]
        tracks.append(Track(label, low, high, int(lane[low:high].max()) + 1))
    gap = _gaps(kernels.start_ns, kernels.end_ns, tracks, origin_ns)
    name = names.recode(kernels.name, trace.names)
    return TrackTable("kernel", tuple(tracks), gap, kernels.end_ns - kernels.start_ns, lane, name, extra)


def _slices(codes: Codes | Ints) -> list[tuple[int, int]]:
    if not len(codes):
        return []
    return list(pairwise([0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]))


def _gaps(start: Ints, end: Ints, tracks: Sequence[Track], origin_ns: int) -> Ints:
    gap = np.empty(len(start), dtype=np.int64)
    for track in tracks:
        gap[track.low] = start[track.low] - origin_ns
        gap[track.low + 1 : track.high] = signed_gaps(
            start[track.low : track.high], end[track.low : track.high]
        )
    return gap


def _look_up(place: Codes, rows: Codes | Ints) -> Ints:
    """Where each row went; -1 stays."""
    found = np.full(len(rows), -1, dtype=np.int64)
    known = rows >= 0
    found[known] = place[rows[known]]
    return found


# What each kind of row is


def _device_label(trace: Trace, key: StreamKey) -> str:
    gpu = trace.recording.gpu_of_device.get((key.process, key.device))
    names = {g.device: g.name for g in trace.recording.gpus}
    model = f", {printable(names[gpu])}" if gpu in names else ""
    return f"process {key.process}, device {key.device}{model}"


def _stream_label(trace: Trace, key: StreamKey) -> str:
    """The context too where a device has several."""
    contexts = {k.context for k in trace.streams if (k.process, k.device) == (key.process, key.device)}
    stream = "all streams" if key.stream == WHOLE_CONTEXT else f"stream {key.stream}"
    return f"context {key.context}, {stream}" if len(contexts) > 1 else stream


def _on_streams(trace: Trace, what: str = "") -> list[Label]:
    return [
        Label(
            _device_label(trace, key),
            f"{what}, {_stream_label(trace, key)}" if what else _stream_label(trace, key),
            (key.process, key.device, place),
        )
        for place, key in enumerate(trace.streams)
    ]


def _threads(thread: Ints, what: str) -> tuple[Codes, list[Label]]:
    code, distinct = encode(thread)
    return code, [_thread_label(one, what) for one in distinct.tolist()]


def _thread_label(thread: int, what: str) -> Label:
    process, number = thread >> 24, thread & 0xFFFFFF
    if thread == NONE:
        return Label("host, process unknown", what, (HOST_ROW, HOST_ROW, 0))
    return Label(f"process {process}, host", f"{what}, thread {number}", (process, HOST_ROW, number))


def _range_rows(trace: Trace, names: _Names) -> _Rows:
    ranges = trace.ranges
    track, labels = _threads(ranges.thread, "NVTX")
    name = names.recode(ranges.name, trace.range_names)
    return _Rows("range", labels, track, ranges.start_ns, ranges.end_ns, name, {})


def _call_rows(trace: Trace, names: _Names) -> _Rows:
    calls = trace.calls
    track, labels = _threads(calls.thread, "CUDA calls")
    name = names.recode(calls.name, trace.names)
    return _Rows("call", labels, track, calls.start_ns, calls.end_ns, name, {})


def _wait_rows(trace: Trace, names: _Names) -> _Rows:
    waits = trace.waits
    name = np.full(len(waits), names.code("host waits") if len(waits) else 0, dtype=np.int32)
    return _Rows(
        "wait", _on_streams(trace, "host waits"), waits.stream, waits.start_ns, waits.end_ns, name, {}
    )


def _opaque_rows(trace: Trace, names: _Names) -> _Rows:
    replays = trace.opaque_replays
    name = _name_each(replays.graph, lambda graph: names.code(f"opaque replay of graph {graph}"))
    labels = _on_streams(trace, "opaque replays")
    return _Rows("opaque", labels, replays.stream, replays.start_ns, replays.end_ns, name, {})


def _copy_rows(trace: Trace, names: _Names) -> _Rows:
    copies = trace.copies
    size = np.where(copies.moved_bytes == NONE, -1, copies.moved_bytes)
    kind = _name_each(
        copies.memset.astype(np.int64), lambda memset: names.code("memset" if memset else "copy")
    )
    labels = _on_streams(trace, "copies")
    return _Rows("copy", labels, copies.stream, copies.start_ns, copies.end_ns, kind, {"bytes": size})


def _name_each(values: Ints, code_of: Callable[[int], int]) -> Codes:
    code, distinct = encode(values)
    return np.array([code_of(value) for value in distinct.tolist()], dtype=np.int32)[code]


def _replay_rows(trace: Trace, names: _Names) -> tuple[_Rows, Ints]:
    """One row a graph replay whose kernels are in the file, and each kernel's replay or -1."""
    kernels = trace.kernels
    nodes = np.flatnonzero((kernels.graph_node != NONE) & (kernels.correlation != NONE))
    keys = [(key.process, key.device) for key in trace.streams]
    where = np.array(keys, dtype=np.int64).reshape(-1, 2)[kernels.stream[nodes]]
    code, distinct = encode_rows([where[:, 0], where[:, 1], kernels.correlation[nodes]])
    count = len(distinct[0]) if len(nodes) else 0
    start = np.full(count, np.iinfo(np.int64).max)
    end, graph = np.full(count, NONE), np.full(count, NONE)
    np.minimum.at(start, code, kernels.start_ns[nodes])
    np.maximum.at(end, code, kernels.end_ns[nodes])
    np.maximum.at(graph, code, kernels.graph_node[nodes] >> 32)
    track, pairs = encode_rows([distinct[0][:count], distinct[1][:count]])
    labels = [
        Label(_device_label(trace, StreamKey(p, d, 0, 0)), "graph replays", (p, d, HOST_ROW))
        for p, d in zip(*(column.tolist() for column in pairs), strict=True)
    ]
    name = _name_each(graph, lambda g: names.code(f"replay of graph {g}"))
    replay_of = np.full(len(kernels), -1, dtype=np.int64)
    replay_of[nodes] = code
    sizes = np.bincount(code, minlength=count).astype(np.int64)
    return _Rows("replay", labels, track, start, end, name, {"kernels": sizes}), replay_of


# Columns of kernels


def _innermost_range(trace: Trace) -> Ints:
    """The latest opened range that holds each kernel's launch, or -1."""
    members = find_members(trace, np.arange(len(trace.ranges)))
    order = np.argsort(members.range_row, kind="stable")
    found = np.full(len(trace.kernels), -1, dtype=np.int64)
    found[members.kernel[order]] = members.range_row[order]  # of several the last, the innermost, stays
    return found


def _cause_codes(boundaries: Boundaries, causes: Causes) -> Ints:
    """The main cause of the white space into each kernel, plus INTERRUPTED where that is so."""
    parts = np.stack([causes.host_ns, causes.call_ns, causes.queued_ns, causes.unknown_ns])
    code = np.where(boundaries.replay, REPLAY, HOST + np.argmax(parts, axis=0))
    code = np.where(boundaries.gap_ns > 0, code, np.where(boundaries.replay, REPLAY, QUEUED))
    code = np.where(boundaries.exists, code, NO_BOUNDARY)
    coded: Ints = code + INTERRUPTED * boundaries.interrupted
    return coded


def _shapes(trace: Trace) -> tuple[tuple[tuple[int, ...], ...], Codes]:
    kernels = trace.kernels
    if kernels.grid is None or kernels.block is None:
        return (), np.full(len(kernels), -1, dtype=np.int32)
    columns = [part[:, i].astype(np.int64) for part in (kernels.grid, kernels.block) for i in range(3)]
    code, distinct = encode_rows(columns)
    return tuple(zip(*(column.tolist() for column in distinct), strict=True)), code
