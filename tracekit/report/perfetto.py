"""A trace as Chrome JSON for Perfetto, with no kernel lost.

Perfetto drops complete events that overlap on one track (google/perfetto#4280): an overlapping kernel
goes to a further track here. Times are microseconds with three decimals, so nanoseconds survive, from
the first event of the trace on. A process of the trace and each of its devices is a process there;
ids of flows are unique in the file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from tracekit.analysis.boundaries import find_boundaries, find_causes
from tracekit.errors import TracekitError
from tracekit.report.tracks import REPLAY, Kind, Track, Tracks, TrackTable, lay_out_tracks
from tracekit.trace import Ints, Trace

BUSY_SAMPLES = 2000  # of each track over the recording
CAUSES = ("none", "host", "launch call", "queued", "unknown", "replay")

Starts = Mapping[Kind, Ints]  # by kind of table, nanoseconds after the trace's first event


def write_perfetto(trace: Trace, path: Path) -> None:
    """Write the trace as gzipped Chrome JSON: every interval, launch arrows, counters of gaps and busy share.

    Equal traces give equal bytes. Raises TracekitError where the file cannot be written.
    """
    try:
        with path.open("wb") as file, gzip.GzipFile("", "wb", 5, file, mtime=0) as packed:
            packed.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
            for part in _join(list_events(trace)):
                packed.write(part)
            packed.write(b"\n]}\n")
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written: {error.strerror}") from None


def list_events(trace: Trace) -> Iterator[str]:
    """Every event of the file as JSON, in the order in which it is written."""
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

    def names(self) -> Iterator[str]:
        """What the numbers stand for."""
        for group, pid in self._processes.items():
            yield _meta("process_name", {"pid": pid}, {"name": group})
            yield _meta("process_sort_index", {"pid": pid}, {"sort_index": pid})
        for (group, text, lane), tid in self._threads.items():
            where = {"pid": self._processes[group], "tid": tid}
            yield _meta("thread_name", where, {"name": f"{text}, overlapping {lane}" if lane else text})
            yield _meta("thread_sort_index", where, {"sort_index": tid})


def _meta(name: str, where: dict[str, int], args: dict[str, object]) -> str:
    return json.dumps({"ph": "M", "name": name, **where, "args": args})


# Millions of events: their JSON is put together here, which is three times as fast as json.dumps of a dict.


def _slices(tracks: Tracks, table: TrackTable, track: Track, start: Ints, places: _Places) -> Iterator[str]:
    where = ['"pid":{},"tid":{}'.format(*places.of(track, lane)) for lane in range(track.lanes)]
    names = [json.dumps(name) for name in tracks.names]
    rows = slice(track.low, track.high)
    columns = (start[rows], table.duration_ns[rows], table.name[rows], table.lane[rows])
    lists = zip(*(column.tolist() for column in columns), strict=True)
    arguments = _kernel_arguments(tracks, table, rows) if table.kind == "kernel" else _arguments(table, rows)
    for (start_ns, duration_ns, name, lane), args in zip(lists, arguments, strict=True):
        yield (
            f'{{"ph":"X","name":{names[name]},"cat":"{table.kind}",{where[lane]},'
            f'"ts":{start_ns / 1000},"dur":{duration_ns / 1000},"args":{{{args}}}}}'
        )


def _arguments(table: TrackTable, rows: slice) -> Iterator[str]:
    extra = {name: values[rows].tolist() for name, values in table.extra.items()}
    for i in range(rows.stop - rows.start):
        yield ",".join(f'"{name}":{values[i]}' for name, values in extra.items() if values[i] >= 0)


def _kernel_arguments(tracks: Tracks, table: TrackTable, rows: slice) -> Iterator[str]:
    shapes = [f',"grid":{list(shape[:3])},"block":{list(shape[3:])}' for shape in tracks.shapes]
    shapes.append(',"grid":null,"block":null')  # found by -1: shapes were not read
    columns = (table.gap_ns[rows], table.extra["cause"][rows], table.extra["shape"][rows])
    for gap_ns, coded, shape in zip(*(column.tolist() for column in columns), strict=True):
        cause = coded & 7
        word = CAUSES[cause] if gap_ns > 0 else "overlap" if gap_ns < 0 else "none"
        yield f'"gap_ns":{gap_ns if cause else "null"},"cause":"{word if cause else "none"}"{shapes[shape]}'


def _counters(table: TrackTable, track: Track, start: Ints, places: _Places) -> Iterator[str]:
    """The gap before each kernel, replay and launch apart, and the track's busy share, sampled evenly."""
    pid, _ = places.of(track, 0)
    launch, replay, busy = (
        f'{{"ph":"C","name":{json.dumps(name)},"pid":{pid},"ts":'
        for name in (
            f"gap, launch, {track.label.text} (ns)",
            f"gap, replay, {track.label.text} (ns)",
            f"busy, {track.label.text} (%)",
        )
    )
    rows = slice(track.low, track.high)
    columns = (start[rows], table.gap_ns[rows], table.extra["cause"][rows])
    for start_ns, gap_ns, coded in zip(*(column.tolist() for column in columns), strict=True):
        if cause := coded & 7:
            yield f'{replay if cause == REPLAY else launch}{start_ns / 1000},"args":{{"value":{gap_ns}}}}}'
    for at_ns, share in sample_busy(start[rows], table.duration_ns[rows]):
        yield f'{busy}{at_ns / 1000},"args":{{"value":{share}}}}}'


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


def _flows(tracks: Tracks, starts: Starts, places: _Places) -> Iterator[str]:
    """An arrow from a launch call to the first kernel that it launched."""
    calls, kernels = tracks.table("call"), tracks.table("kernel")
    if calls is None or kernels is None:
        return
    launched, first = np.unique(kernels.extra["call"], return_index=True)
    known = launched >= 0
    begins = _ends(calls, starts["call"], launched[known], places)
    ends = _ends(kernels, starts["kernel"], first[known], places)
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True), 1):
        flow = f'"name":"launch","cat":"launch","id":{number}'
        yield f'{{"ph":"s",{flow},{begin}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{end}}}'


def _ends(table: TrackTable, start: Ints, rows: Ints, places: _Places) -> Iterator[str]:
    edges = np.array([track.low for track in table.tracks])
    track = np.searchsorted(edges, rows, side="right") - 1
    columns = (track, table.lane[rows], start[rows])
    for one, lane, start_ns in zip(*(column.tolist() for column in columns), strict=True):
        pid, tid = places.of(table.tracks[one], lane)
        yield f'"pid":{pid},"tid":{tid},"ts":{start_ns / 1000}'


def _join(events: Iterator[str]) -> Iterator[bytes]:
    """The events with a comma and a line break between two, some thousands at a time."""
    separator = ""
    while batch := list(islice(events, 5000)):
        yield (separator + ",\n".join(batch)).encode()
        separator = ",\n"
