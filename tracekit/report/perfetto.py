"""A trace as Chrome JSON for Perfetto, with no kernel lost.

Perfetto drops complete events that overlap on one track (google/perfetto#4280): an overlapping kernel
goes to a further track here. Times are microseconds with three decimals, so nanoseconds survive, from
the first event of the trace on. A process of the trace and each of its devices is a process there;
ids of flows are unique in the file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.analysis.boundaries import find_boundaries, find_causes
from tracekit.errors import TracekitError
from tracekit.report.tracks import REPLAY, Kind, Track, Tracks, TrackTable, lay_out_tracks
from tracekit.trace import Ints, Trace

BUSY_SAMPLES = 2000  # of each track over the recording
CAUSES = ("none", "host", "launch call", "queued", "unknown", "replay")

Event = dict[str, Any]
Starts = Mapping[Kind, Ints]  # by kind of table, nanoseconds after the trace's first event


def write_perfetto(trace: Trace, path: Path) -> None:
    """Write the trace as gzipped Chrome JSON: every interval, launch arrows, counters of gaps and busy share.

    Equal traces give equal bytes. Raises TracekitError where the file cannot be written.
    """
    try:
        with path.open("wb") as file, gzip.GzipFile("", "wb", 5, file, mtime=0) as packed:
            packed.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
            for part in _lines(list_events(trace)):
                packed.write(part)
            packed.write(b"\n]}\n")
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written: {error.strerror}") from None


def list_events(trace: Trace) -> Iterator[Event]:
    """Every event of the file, in the order in which it is written."""
    boundaries = find_boundaries(trace)
    tracks = lay_out_tracks(trace, boundaries, find_causes(trace, boundaries))
    starts = {table.kind: starts_of(table) for table in tracks.tables}
    places = _Places()
    for table in tracks.tables:
        for track in table.tracks:
            yield from _slices(tracks, table, track, starts[table.kind], places)
            if table.kind == "kernel":
                yield from _counters(table, track, starts["kernel"], places)
    yield from _flows(tracks, starts, places)
    yield from places.names()


def starts_of(table: TrackTable) -> Ints:
    """Starts of a table's rows, in nanoseconds after its origin: the gaps summed up again."""
    start = np.empty(len(table.gap_ns), dtype=np.int64)
    for track in table.tracks:
        # A row starts at `reach + gap`, and reaches to the later of `reach` and its end:
        # reach[i] = reach[i - 1] + max(0, gap[i] + duration[i]).
        rows = slice(track.low, track.high)
        reach = np.cumsum(np.maximum(table.gap_ns[rows] + table.duration_ns[rows], 0))
        start[rows] = table.gap_ns[rows] + np.concatenate(([0], reach[:-1]))
    return start


class _Places:
    """Process and thread numbers for Perfetto, given in the order of their first use."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[str, str, int], int] = {}

    def of(self, track: Track, lane: int) -> tuple[int, int]:
        """The (pid, tid) of a lane of a track."""
        group, text = track.label.group, track.label.text
        pid = self._processes.setdefault(group, len(self._processes) + 1)
        tid = self._threads.setdefault((group, text, lane), len(self._threads) + 1)
        return pid, tid

    def names(self) -> Iterator[Event]:
        """What the numbers stand for."""
        for group, pid in self._processes.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": group}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for (group, label, lane), tid in self._threads.items():
            name = label if lane == 0 else f"{label}, overlapping {lane}"
            where = {"pid": self._processes[group], "tid": tid}
            yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": tid}}


def _slices(tracks: Tracks, table: TrackTable, track: Track, start: Ints, places: _Places) -> Iterator[Event]:
    where = [places.of(track, lane) for lane in range(track.lanes)]
    rows = slice(track.low, track.high)
    columns = (start[rows], table.duration_ns[rows], table.name[rows], table.lane[rows])
    lists = zip(*(column.tolist() for column in columns), strict=True)
    arguments = _arguments(tracks, table, track)
    for (start_ns, duration_ns, name, lane), args in zip(lists, arguments, strict=True):
        pid, tid = where[lane]
        yield {
            **{"ph": "X", "name": tracks.names[name], "cat": table.kind, "pid": pid, "tid": tid},
            **{"ts": start_ns / 1000, "dur": duration_ns / 1000, "args": args},
        }


def _arguments(tracks: Tracks, table: TrackTable, track: Track) -> Iterator[Event]:
    rows = slice(track.low, track.high)
    extra = {name: values[rows].tolist() for name, values in table.extra.items()}
    if table.kind != "kernel":
        for i in range(track.high - track.low):
            yield {name: values[i] for name, values in extra.items() if values[i] >= 0}
        return
    gaps = table.gap_ns[rows].tolist()
    for gap_ns, cause, shape in zip(gaps, extra["cause"], extra["shape"], strict=True):
        args: Event = {"gap_ns": gap_ns, "cause": CAUSES[cause & 7]} if cause & 7 else {}
        if gap_ns <= 0 and cause & 7:
            args["cause"] = "overlap" if gap_ns else "none"
        if shape >= 0:
            grid = tracks.shapes[shape]
            args |= {"grid": list(grid[:3]), "block": list(grid[3:])}
        yield args


def _counters(table: TrackTable, track: Track, start: Ints, places: _Places) -> Iterator[Event]:
    """The gap before each kernel, replay and launch apart, and the track's busy share, sampled evenly."""
    pid, _ = places.of(track, 0)
    rows = slice(track.low, track.high)
    columns = (start[rows], table.gap_ns[rows], table.extra["cause"][rows])
    for start_ns, gap_ns, cause in zip(*(column.tolist() for column in columns), strict=True):
        if cause & 7:
            kind = "replay" if cause & 7 == REPLAY else "launch"
            yield _counter(pid, f"gap, {kind}, {track.label.text} (ns)", start_ns, gap_ns)
    for at, share in sample_busy(start[rows], table.duration_ns[rows]):
        yield _counter(pid, f"busy, {track.label.text} (%)", at, share)


def _counter(pid: int, name: str, at_ns: int, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": at_ns / 1000, "args": {"value": value}}


def sample_busy(start_ns: Ints, duration_ns: Ints, samples: int = BUSY_SAMPLES) -> list[tuple[int, float]]:
    """(time, busy share of the stretch from there to the next time in percent); ends with 0."""
    reach = np.maximum.accumulate(start_ns + duration_ns)
    white = np.maximum(start_ns[1:] - reach[:-1], 0)
    low, high = int(start_ns[0]), int(reach[-1])
    at = np.unique(np.linspace(low, high, samples + 1).astype(np.int64))
    row = np.searchsorted(start_ns, at, side="right") - 1
    until = reach[row] - low - np.concatenate(([0], np.cumsum(white)))[row] - np.maximum(reach[row] - at, 0)
    shares = 100 * np.diff(until) / np.maximum(np.diff(at), 1)
    return [*zip(at[:-1].tolist(), shares.round(2).tolist(), strict=True), (high, 0.0)]


def _flows(tracks: Tracks, starts: Starts, places: _Places) -> Iterator[Event]:
    """An arrow from a launch call to the first kernel that it launched."""
    calls, kernels = tracks.table("call"), tracks.table("kernel")
    if calls is None or kernels is None:
        return
    launched, first = np.unique(kernels.extra["call"], return_index=True)
    known = launched >= 0
    ends = (_ends(calls, starts["call"], places), _ends(kernels, starts["kernel"], places))
    numbers = count(1)
    for call, kernel in zip(launched[known].tolist(), first[known].tolist(), strict=True):
        flow = {"name": "launch", "cat": "launch", "id": next(numbers)}
        yield {"ph": "s", **flow, **ends[0](call)}
        yield {"ph": "f", "bp": "e", **flow, **ends[1](kernel)}


def _ends(table: TrackTable, start: Ints, places: _Places) -> Any:
    edges = np.array([track.low for track in table.tracks])

    def end(row: int) -> Event:
        track = table.tracks[int(np.searchsorted(edges, row, side="right")) - 1]
        pid, tid = places.of(track, int(table.lane[row]))
        return {"pid": pid, "tid": tid, "ts": int(start[row]) / 1000}

    return end


def _lines(events: Iterable[Event]) -> Iterator[bytes]:
    """The events' JSON, a comma and a line break between two, a few thousand at a time."""
    encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
    buffer: list[str] = []
    separator = ""
    for event in events:
        buffer.append(encode(event))
        if len(buffer) == 5000:
            yield (separator + ",\n".join(buffer)).encode()
            buffer, separator = [], ",\n"
    if buffer:
        yield (separator + ",\n".join(buffer)).encode()
