"""`gaps --json` once more: slow, plain, row by row, from DESIGN.md alone. Imports nothing of tracekit.

Only whole numbers count as numbers. Everything is Python integers, so nothing overflows.
"""

from __future__ import annotations

import math
import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

Document = dict[str, Any]
Row = dict[str, Any]
Intervals = dict[tuple[int, int], list[tuple[int, int]]]  # by (process, device)

WHOLE_CONTEXT = 2**32 - 1
NO_DEVICE = 2**31 - 1
LIMIT_NS = 2**62


class Stream(NamedTuple):
    process: int
    device: int
    context: int
    stream: int


@dataclass(eq=False)
class Call:
    start: int
    end: int
    process: int
    thread: int
    id: int | None
    name: str
    known: bool  # whether the file says which thread made it

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(eq=False)
class Activity:
    """A kernel, a copy, a wait or an opaque replay."""

    row: int
    start: int
    end: int
    stream: Stream
    name: str = ""
    id: int | None = None
    node: int | None = None
    call: Call | None = None

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def graph(self) -> int | None:
        return None if self.node is None else self.node >> 32

    @property
    def replay(self) -> tuple[int, int] | None:
        """The graph replay it belongs to."""
        return None if self.node is None or self.id is None else (self.stream.process, self.id)


@dataclass(eq=False)
class Boundary:
    previous: Activity
    next: Activity
    gap: int
    replay: bool
    head: bool = False
    interrupted: bool = False

    @property
    def white(self) -> int:
        return max(self.gap, 0)

    @property
    def overlap(self) -> int:
        return min(max(0, -self.gap), self.next.length)

    @property
    def causes(self) -> dict[str, int]:
        """The white space, cut at the start and the end of the next kernel's call."""
        call, low, high = self.next.call, self.next.start - self.white, self.next.start
        if call is None or self.next.start < call.start:
            return {"host": 0, "call": 0, "queued": 0, "unknown": self.white}
        first, second = (min(max(edge, low), high) for edge in (call.start, call.end))
        return {"host": first - low, "call": second - first, "queued": high - second, "unknown": 0}


@dataclass(eq=False)
class Range:
    start: int
    end: float  # infinite where it was never closed
    name: str
    process: int
    thread: int | None  # None: the whole process

    def owns(self, kernel: Activity) -> bool:
        call = kernel.call
        if call is None or not self.start <= call.start < self.end:
            return False
        return call.process == self.process and self.thread in (None, call.thread)


@dataclass(frozen=True)
class Selection:
    """What `gaps` was told to look at."""

    where: str = "all"
    process: int | None = None
    device: int | None = None
    window: tuple[int, int] | None = None
    ranges: tuple[str, ...] | None = None  # full names


Launched = dict[tuple[int, int | None], list[tuple[int, Activity]]]
"""By process and thread (None: by process alone), in order of the call: its start and the kernel."""


@dataclass
class Group:
    key: Row
    kernels: set[Activity] = field(default_factory=set)
    boundaries: list[Boundary] = field(default_factory=list)


def open_reference(path: Path, selection: Selection = Selection()) -> Reference:
    """Read an export for the reference."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return Reference(_File(db), selection)


def reference(path: Path, by: str, selection: Selection = Selection()) -> Document:
    """The document that `tracekit gaps PATH --by BY --json` prints.

    `warnings` counts by code what the rows themselves tell; what the recording says is not there.
    """
    return open_reference(path, selection).document(path.name, by)


TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in (
    "KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE"
)] + [
    "StringIds", "NVTX_EVENTS", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE",
    "META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE",
]  # fmt: skip


class _File:
    """All rows of the tables that matter; a column that a table lacks is missing from each row."""

    def __init__(self, db: sqlite3.Connection) -> None:
        there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        self.tables: dict[str, list[Row]] = {}
        self.columns: dict[str, list[str]] = {}
        for table in there & set(TABLES):
            names = [column[1] for column in db.execute(f'PRAGMA table_info("{table}")')]
            listed = ",".join(f'"{name}"' for name in names)
            rows = db.execute(f'SELECT {listed} FROM "{table}"')
            self.tables[table] = [dict(zip(names, row, strict=True)) for row in rows]
            self.columns[table] = names
        self.dropped = 0

    def rows(self, table: str) -> list[Row]:
        return self.tables.get(table, [])

    def timed(self, table: str) -> Iterable[tuple[int, Row, int, int]]:
        """Rows that can be true, with their number, start and end; the others are counted."""
        if not {"start", "end"} <= set(self.columns.get(table, [])):
            return
        for number, row in enumerate(self.rows(table)):
            start, end = whole(row["start"]), whole(row["end"])
            if _possible(start, end):
                yield number, row, start, end  # type: ignore[misc]
            else:
                self.dropped += 1


def whole(value: object) -> int | None:
    """A whole number, or None. The least one of 64 bits stands for none."""
    if isinstance(value, float) and value.is_integer() and abs(value) < LIMIT_NS:
        return int(value)
    return value if isinstance(value, int) and value != -(2**63) else None


def _possible(start: int | None, end: int | None) -> bool:
    if start is None or end is None or end < start or start == end == 0:
        return False
    return abs(start) <= LIMIT_NS and abs(end) <= LIMIT_NS


class Reference:
    """One trace, read; `document` sums it up."""

    def __init__(self, file: _File, selection: Selection) -> None:
        self.file, self.selection = file, selection
        self.strings = {
            whole(r["id"]): r["value"] for r in file.rows("StringIds") if isinstance(r["value"], str)
        }
        self._read_activity()
        self._join_calls()
        self._name_processes()
        self.ranges = self._read_ranges()
        self.boundaries = self._find_boundaries()

    def document(self, name: str, by: str) -> Document:
        everything = [*self.kernels, *self.copies, *self.replays]
        low, high = self.selection.window or (
            min(a.start for a in everything),
            max(a.end for a in everything),
        )
        return {
            "format": "tracekit.gaps/1",
            "trace": {
                "file": name,
                "product": "nsys",
                "nsys_version": self._meta("EXPORT_PRODUCT_VERSION"),
                "schema_version": self._meta("EXPORT_SCHEMA_VERSION"),
                "tick_ns": _tick([kernel.length for kernel in self.kernels]),
                "graph_trace": self._graph_trace(),
                "span_ns": high - low,
                "kernels": len(self.kernels),
                "opaque_replays": len(self.replays),
                "gpus": self._gpus(),
            },
            "devices": self._devices(),
            "by": by,
            "rows": self._rows(by),
            "warnings": {code: count for code, count in self._warnings().items() if count},
        }

    # Doubts

    def _warnings(self) -> dict[str, int]:
        launched = {kernel.call for kernel in self.kernels if kernel.call}
        opaque = {(r.stream.process, r.id) for r in self.replays if r.id is not None}
        graph_launches = [c for c in self.calls if re.match("cu(da)?GraphLaunch", c.name)]
        active = {a.stream.process for a in (*self.kernels, *self.copies, *self.replays)}
        return {
            "rows_dropped": self.file.dropped,
            "opaque_replays": len(self.replays),
            "under_recorded_replays": self._partial_replays(),
            "lost_at_start": self._lost_at_start(launched),
            "launches_without_kernels": sum(
                c not in launched and (c.process, c.id) not in opaque for c in graph_launches
            ),
            "launch_not_in_file": sum(k.call is None for k in self.kernels) if self.calls else 0,
            "kernel_before_call": sum(bool(k.call and k.start < k.call.start) for k in self.kernels),
            "process_without_kernels": len({c.process for c in self.calls if c.known} - active),
        }

    def _partial_replays(self) -> int:
        size: dict[tuple[object, object], int] = defaultdict(int)
        for kernel in self.kernels:
            if kernel.replay is not None:
                size[kernel.graph, kernel.replay] += 1
        count = 0
        for (graph, replay), kernels in size.items():
            process = replay[0]  # type: ignore[index]
            largest = max(n for (g, r), n in size.items() if g == graph and r[0] == process)  # type: ignore[index]
            count += kernels < largest
        return count

    def _lost_at_start(self, launched: set[Call]) -> int:
        """Launches without a kernel before the first with one, and before any capture into a graph."""
        if not launched:
            return 0
        count = 0
        for call in sorted(self.calls, key=lambda c: c.start):
            if call in launched or re.match("cu(da)?StreamBeginCapture", call.name):
                return count
            count += bool(re.match("cu(da)?Launch(Cooperative)?Kernel", call.name))
        return count

    # Reading

    def _read_activity(self) -> None:
        kind = "CUPTI_ACTIVITY_KIND_"
        self.kernels = [self._activity(*row) for row in self.file.timed(f"{kind}KERNEL")]
        self.copies = [
            self._activity(*row) for table in ("MEMCPY", "MEMSET") for row in self.file.timed(kind + table)
        ]
        self.replays = [self._activity(*row) for row in self.file.timed(f"{kind}GRAPH_TRACE")]
        known = {r.stream.device for r in self.replays} - {NO_DEVICE}
        for r in self.replays:
            if r.stream.device == NO_DEVICE and len(known) == 1:
                r.stream = r.stream._replace(device=min(known))
        self.waits = []
        for number, row, start, end in self.file.timed(f"{kind}SYNCHRONIZATION"):
            sync = whole(row.get("syncType", row.get("deprecatedSyncType")))
            if sync in (3, 4):
                wait = self._activity(number, row, start, end)
                wait.stream = wait.stream._replace(stream=WHOLE_CONTEXT) if sync == 4 else wait.stream
                self.waits.append(wait)
        self.calls = [
            Call(start, end, (whole(row.get("globalTid")) or 0) >> 24, whole(row.get("globalTid")) or 0,
                 whole(row.get("correlationId")), self._call_name(row),
                 whole(row.get("globalTid")) is not None)
            for _, row, start, end in self.file.timed(f"{kind}RUNTIME")
        ]  # fmt: skip
        callers = {
            None if whole(row.get("globalTid")) is None else whole(row["globalTid"]) >> 24  # type: ignore[operator]
            for row in self._valid_calls()
        }
        only = callers.pop() if len(callers) == 1 else None
        for one in self._everything():
            if one.stream.process == -1:
                one.stream = one.stream._replace(process=only or 0)

    def _valid_calls(self) -> list[Row]:
        before = self.file.dropped
        rows = [row for _, row, _, _ in self.file.timed("CUPTI_ACTIVITY_KIND_RUNTIME")]
        self.file.dropped = before  # counted once
        return rows

    def _everything(self) -> list[Activity]:
        return [*self.kernels, *self.copies, *self.replays, *self.waits]

    def _activity(self, number: int, row: Row, start: int, end: int) -> Activity:
        pid = whole(row.get("globalPid"))
        place = (whole(row.get(c)) or 0 for c in ("deviceId", "contextId", "streamId"))
        stream = Stream(-1 if pid is None else pid >> 24, *place)
        node = whole(row.get("graphNodeId"))
        name = self._kernel_name(row)
        return Activity(number, start, end, stream, name, whole(row.get("correlationId")), node)

    def _kernel_name(self, row: Row) -> str:
        column = next((c for c in ("demangledName", "shortName", "mangledName") if c in row), None)
        id_ = whole(row[column]) if column else None
        return self.strings.get(id_, "unnamed kernel" if id_ is None else f"unnamed kernel {id_}")

    def _call_name(self, row: Row) -> str:
        return self.strings.get(whole(row.get("nameId")), "")

    def _join_calls(self) -> None:
        """The launch of a kernel: the first call of its process with its correlation id."""
        first: dict[tuple[int, int | None], Call] = {}
        for call in sorted(self.calls, key=lambda c: c.start):
            first.setdefault((call.process, call.id), call)
        for kernel in self.kernels:
            kernel.call = None if kernel.id is None else first.get((kernel.stream.process, kernel.id))

    def _name_processes(self) -> None:
        """Print the pid alone, unless two hosts share one."""
        numbers = {a.stream.process for a in self._everything()} | {c.process for c in self.calls}
        self.shared = len({n & 0xFFFFFF for n in numbers}) < len(numbers)
        if self.shared:
            return
        for one in self._everything():
            one.stream = one.stream._replace(process=one.stream.process & 0xFFFFFF)
        for call in self.calls:
            call.process &= 0xFFFFFF
            call.thread &= (1 << 48) - 1

    def _read_ranges(self) -> list[Range]:
        domains, ranges = {}, []
        rows = list(self.file.rows("NVTX_EVENTS"))
        if rows and not {"start", "end", "eventType"} <= set(rows[0]):
            return []
        for row in rows:
            if whole(row["eventType"]) == 75:
                domains[self._thread(row) >> 24, whole(row.get("domainId"))] = self._range_name(row)
        for row in rows:
            kind, start, end = (whole(row[c]) for c in ("eventType", "start", "end"))
            if kind not in (59, 60):
                continue
            if not _possible(start, LIMIT_NS if end is None else end):
                self.file.dropped += 1
                continue
            thread = self._thread(row)
            domain = domains.get((thread >> 24, whole(row.get("domainId"))))
            name = f"{domain}:{self._range_name(row)}" if domain else self._range_name(row)
            closed = math.inf if end is None else end
            ranges.append(Range(start, closed, name, thread >> 24, None if kind == 60 else thread))  # type: ignore[arg-type]
        return ranges

    def _thread(self, row: Row) -> int:
        thread = whole(row.get("globalTid")) or 0
        return thread if self.shared else thread & (1 << 48) - 1

    def _range_name(self, row: Row) -> str:
        text = row.get("text")
        return self.strings.get(whole(row.get("textId")), "unnamed range") if text is None else str(text)

    def _meta(self, name: str) -> str | None:
        rows = [r for t in ("META_DATA_EXPORT", "EXPORT_META_DATA") for r in self.file.rows(t)]
        return next((r["value"] for r in rows if r["name"] == name), None)

    def _graph_trace(self) -> str | None:
        for row in self.file.rows("META_DATA_CAPTURE"):
            if row["name"].endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE"):
                return str(row["value"]).lower()
        if any(kernel.node is not None for kernel in self.kernels):
            return "node"
        return "graph" if list(self.file.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")) else None

    # Devices

    def _clipped(self, activity: Iterable[Activity]) -> list[tuple[int, int]]:
        if self.selection.window is None:
            return [(a.start, a.end) for a in activity]
        low, high = self.selection.window
        inside = [a for a in activity if a.end > low and a.start < high]
        return [(max(a.start, low), min(a.end, high)) for a in inside]

    def _span(self, intervals: Sequence[tuple[int, int]]) -> int:
        low, high = self.selection.window or (min(s for s, _ in intervals), max(e for _, e in intervals))
        return high - low

    def _devices(self) -> list[Document]:
        work: Intervals = defaultdict(list)
        copies: Intervals = defaultdict(list)
        for activity, found in ((self.kernels, work), (self.replays, work), (self.copies, copies)):
            for one in activity:
                found[one.stream.process, one.stream.device] += self._clipped([one])
        devices = []
        for process, device in sorted(work.keys() | copies.keys()):
            kernels = work[process, device]
            everything = kernels + copies[process, device]
            span, busy = self._span(everything), union_length(everything)
            devices.append(
                {"process": process, "device": device, "span_ns": span, "busy_ns": busy}
                | {"idle_ns": span - busy, "copy_only_ns": busy - union_length(kernels)}
            )
        return devices

    def _gpus(self) -> list[Document]:
        at: dict[int, list[Activity]] = defaultdict(list)
        on = {} if self.shared else {
            (r["pid"], r["cudaId"]): r["gpuId"] for r in self.file.rows("TARGET_INFO_CUDA_DEVICE")
        }  # fmt: skip
        for one in (*self.kernels, *self.copies, *self.replays):
            gpu = on.get((one.stream.process, one.stream.device))
            if gpu is not None:
                at[gpu].append(one)
        gpus = []
        for row in self.file.rows("TARGET_INFO_GPU"):
            number = row["id"] if "id" in row else row["deviceId"]
            if not isinstance(number, int):
                continue
            gpu = {"device": number, "name": row["name"] if isinstance(row["name"], str) else "unnamed GPU"}
            bandwidth = row.get("memoryBandwidth")
            gpu["memory_bandwidth_bytes_per_s"] = (bandwidth or None) if isinstance(bandwidth, int) else None
            if at[number]:
                intervals = self._clipped(at[number])
                span, busy = self._span(intervals), union_length(intervals)
                gpu |= {"busy_ns": busy, "idle_ns": span - busy, "span_ns": span}
            gpus.append(gpu)
        return gpus

    # Boundaries

    def _find_boundaries(self) -> list[Boundary]:
        streams = defaultdict(list)
        for kernel in self.kernels:
            streams[kernel.stream].append(kernel)
        boundaries = []
        for stream in sorted(streams):
            kernels = sorted(streams[stream], key=lambda k: (k.start, k.end, k.row))
            reach = kernels[0].end
            for previous, following in pairwise(kernels):
                same = previous.replay is not None and previous.replay == following.replay
                boundaries.append(Boundary(previous, following, following.start - reach, same))
                reach = max(reach, following.end)
        heads: dict[object, Boundary] = {}
        for b in sorted(boundaries, key=lambda b: b.next.start):
            if b.replay:
                heads.setdefault(b.next.replay, b)
        for b in heads.values():
            b.head = True
        self._mark_interrupted(boundaries)
        return boundaries

    def _mark_interrupted(self, boundaries: list[Boundary]) -> None:
        ends: dict[Stream, list[int]] = defaultdict(list)
        for one in (*self.copies, *self.waits, *self.replays):
            ends[one.stream].append(one.end)
        for listed in ends.values():
            listed.sort()
        for b in boundaries:
            for stream in (b.next.stream, b.next.stream._replace(stream=WHOLE_CONTEXT)):
                listed = ends.get(stream, [])
                b.interrupted |= bisect_right(listed, b.previous.start) < bisect_right(listed, b.next.start)

    # Rows

    def _counts(self, kernel: Activity) -> bool:
        chosen = self.selection
        if chosen.process not in (None, kernel.stream.process):
            return False
        if chosen.device not in (None, kernel.stream.device):
            return False
        if chosen.ranges is not None and not any(r.owns(kernel) for r in self._chosen_ranges()):
            return False
        return chosen.window is None or chosen.window[0] <= kernel.start < chosen.window[1]

    def _chosen_ranges(self) -> list[Range]:
        names = self.selection.ranges
        return self.ranges if names is None else [r for r in self.ranges if r.name in names]

    def _chosen_boundaries(self) -> list[Boundary]:
        both = [b for b in self.boundaries if self._counts(b.previous) and self._counts(b.next)]
        if self.selection.ranges is None:
            return both
        chosen = self._chosen_ranges()
        return [b for b in both if any(r.owns(b.previous) and r.owns(b.next) for r in chosen)]

    def _rows(self, by: str) -> list[Document]:
        kernels = [k for k in self.kernels if self._counts(k)]
        boundaries = self._chosen_boundaries()
        into = {b.next: b for b in boundaries}
        groups: dict[object, Group] = {}

        def group(key: Row, where: str) -> Group:
            return groups.setdefault((*key.items(), where), Group(key | {"where": where}))

        if by == "range":
            self._group_by_range(kernels, into, group)
        else:
            for kernel in kernels:
                b = into.get(kernel)
                where = "replay" if b and b.replay else "launch"
                key = self._key(by, kernel)
                if key is not None and (by != "pair" or b):
                    group(key, where).kernels.add(kernel)
                    group(key, where).boundaries += [b] if b else []
        rows = [_row(g) for g in groups.values() if g.boundaries]
        return [row for row in rows if self.selection.where in ("all", row["where"])]

    def _group_by_range(
        self, kernels: list[Activity], into: dict[Activity, Boundary], group: Callable[[Row, str], Group]
    ) -> None:
        launched: Launched = defaultdict(list)
        for kernel in kernels:
            if kernel.call is not None:
                for thread in (None, kernel.call.thread):
                    launched[kernel.call.process, thread].append((kernel.call.start, kernel))
        for listed in launched.values():
            listed.sort(key=itemgetter(0))
        by_name = defaultdict(list)
        for r in self._chosen_ranges():
            by_name[r.name].append(r)
        for name, ranges in by_name.items():
            for kernel, owners in _owners(launched, ranges):
                b = into.get(kernel)
                inside = b is not None and any(r.owns(b.previous) for r in owners)
                where = "replay" if b and inside and b.replay else "launch"
                group({"range": name}, where).kernels.add(kernel)
                if b and inside:
                    group({"range": name}, where).boundaries.append(b)

    def _key(self, by: str, kernel: Activity) -> Row | None:
        before = self._before.get(kernel)
        if by == "none":
            return {}
        if by == "stream":
            return dict(kernel.stream._asdict())
        if by == "kernel":
            return {"kernel": kernel.name}
        if by == "pair":
            return {"previous": before.name, "next": kernel.name} if before else None
        same = before is None or before.graph == kernel.graph
        return {"process": kernel.stream.process, "graph": kernel.graph if same else None}

    @property
    def _before(self) -> dict[Activity, Activity]:
        if not hasattr(self, "_before_of"):
            self._before_of = {b.next: b.previous for b in self.boundaries}
        return self._before_of


def _owners(launched: Launched, ranges: list[Range]) -> Iterable[tuple[Activity, list[Range]]]:
    """Each kernel of any of the ranges, with those that own it."""
    owners = defaultdict(list)
    for r in ranges:
        listed = launched.get((r.process, r.thread), [])
        low, high = (bisect_left(listed, edge, key=itemgetter(0)) for edge in (r.start, r.end))
        for _, kernel in listed[low:high]:
            owners[kernel].append(r)
    return owners.items()


def _row(group: Group) -> Document:
    boundaries = group.boundaries
    gaps = sorted(b.gap for b in boundaries)
    lengths = sorted(kernel.length for kernel in group.kernels)
    heads = sorted(b.gap for b in boundaries if b.head)
    where = group.key.pop("where")
    causes = {c: sum(b.causes[c] for b in boundaries) for c in ("host", "call", "queued", "unknown")}
    negative = [gap for gap in gaps if gap < 0]
    return {
        "key": group.key,
        "where": where,
        "kernels": len(lengths),
        "boundaries": len(boundaries),
        "overlapping": sum(b.gap < 0 for b in boundaries),
        "interrupted": sum(b.interrupted for b in boundaries),
        "head_ns": percentile(heads, 50) if heads and where == "replay" else None,
        "overlapping_median_ns": percentile(negative, 50) if negative else None,
        "gap_ns": {
            "min": gaps[0],
            "p10": percentile(gaps, 10),
            "median": percentile(gaps, 50),
            "p90": percentile(gaps, 90),
            "p99": percentile(gaps, 99),
            "max": gaps[-1],
            "mean": sum(gaps) / len(gaps),
        },
        "white_ns": sum(b.white for b in boundaries),
        "overlap_ns": sum(b.overlap for b in boundaries),
        "kernel_ns": {"median": percentile(lengths, 50), "sum": sum(lengths)},
        "causes_ns": causes if where == "launch" else None,
    }


def _tick(lengths: Sequence[int]) -> int | None:
    """The grid that nine in ten durations lie on: within a nanosecond of 1 us or 32 ns, or on 5 ns."""
    if len(set(lengths)) < 16:
        return None
    for tick, slack in ((1000, 1), (32, 1), (5, 0)):
        near = sum(min(n % tick, tick - n % tick) <= slack for n in lengths)
        if 10 * near >= 9 * len(lengths):
            return tick
    return None


def reach(intervals: Sequence[Activity | Call]) -> int:
    """From the first start to the last end."""
    return max(i.end for i in intervals) - min(i.start for i in intervals) if intervals else 0


def percentile(ordered: Sequence[int], percent: int) -> float:
    """Linear between the two nearest of the ordered values."""
    whole_part, rest = divmod((len(ordered) - 1) * percent, 100)
    low, high = ordered[whole_part], ordered[min(whole_part + 1, len(ordered) - 1)]
    return low + (high - low) * rest / 100


def union_length(intervals: Iterable[tuple[int, int]]) -> int:
    """How much time is covered by at least one interval."""
    covered, reach = 0, -math.inf
    for start, end in sorted(intervals):
        covered += max(0, end - int(max(start, reach))) if end > reach else 0
        reach = max(reach, end)
    return covered
