"""Decode steps: the instances of an NVTX range or the replays of one graph, and where their time goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.attribution import find_members, match_ranges
from tracekit.analysis.boundaries import find_replayed, starts_before_call
from tracekit.analysis.checks import find_partial_replays
from tracekit.errors import UnanswerableError, UnknownNameError
from tracekit.intervals import clip, cut, merge
from tracekit.trace import NONE, Ints, Trace

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
Intervals = tuple[Ints, Ints]


@dataclass(frozen=True)
class Budget:
    """Where the span of one step goes; the parts add up to `span_ns` to the nanosecond.

    The span runs from the start of the step's first kernel to the end of its last. `kernel_ns` is the
    time with at least one of the step's kernels running (overlap counted once), `copy_ns` copies and
    memsets of the device alone. White space is that of the device, not of a stream: `head_ns` after the
    first kernel of a replay, `replay_ns` elsewhere inside replays; the rest before launches, by cause.
    """

    span_ns: int
    kernel_ns: int
    copy_ns: int
    replay_ns: int
    head_ns: int
    host_ns: int
    call_ns: int
    queued_ns: int
    unknown_ns: int


PARTS = ("kernel_ns", "copy_ns", "replay_ns", "head_ns", "host_ns", "call_ns", "queued_ns", "unknown_ns")


@dataclass(frozen=True)
class Step:
    """One step: its kernels (rows of `Trace.kernels`, by start) and its budget."""

    start_ns: int
    end_ns: int
    kernels: Rows
    budget: Budget


@dataclass(frozen=True)
class Steps:
    """The steps of a trace, in order of start, on one device of one process.

    `source` says in words what a step is; `skipped` how many were cut off at the start when asked to;
    `elsewhere` how many steps ran on other devices and are not here; `partial` how many of `steps` hold a
    graph replay that was recorded in part.
    """

    source: str
    steps: tuple[Step, ...]
    skipped: int
    process: int
    device: int
    elsewhere: int
    partial: int

    @property
    def spans_ns(self) -> NDArray[np.int64]:
        """Each step's span."""
        return np.array([step.end_ns - step.start_ns for step in self.steps], dtype=np.int64)

    @property
    def periods_ns(self) -> NDArray[np.int64]:
        """From the start of each step to the start of the next; one fewer than steps."""
        starts = np.array([step.start_ns for step in self.steps], dtype=np.int64)
        return starts[1:] - starts[:-1]

    @property
    def typical(self) -> Step:
        """The step of median span: a real one, whose budget adds up (of an even number, the shorter)."""
        order = np.argsort(self.spans_ns, kind="stable")
        return self.steps[int(order[(len(order) - 1) // 2])]

    def find_ranges(self, trace: Trace, domain: str) -> tuple[str, ...]:
        """Names, without the domain, of the domain's ranges that launched the typical step."""
        chosen = [i for i, name in enumerate(trace.range_names) if name.startswith(f"{domain}:")]
        members = find_members(trace, np.flatnonzero(np.isin(trace.ranges.name, chosen)))
        rows = members.range_row[np.isin(members.kernel, self.typical.kernels)]
        names = [trace.range_names[code] for code in np.unique(trace.ranges.name[rows])]
        return tuple(name.removeprefix(f"{domain}:") for name in names)


@dataclass(frozen=True)
class Instances:
    """Kernel rows by step, each by start, steps in order of their first kernel; `source` names them."""

    source: str
    kernels: list[Rows]


def find_steps(trace: Trace, range_name: str | None = None, graph: int | None = None, skip: int = 0) -> Steps:
    """The steps of a trace: the instances of the NVTX range called (or matching) `range_name`, or the
    replays of executable graph `graph`; with neither, of the only range or graph that repeats.

    `skip` cuts steps off at the start. Raises `UnknownNameError`, listing what there is, where nothing
    matches or the choice is not clear, and `UnanswerableError` where no kernels are left or the typical
    step holds a replay that was recorded in part.
    """
    instances = find_instances(trace, range_name, graph)
    place, mine, elsewhere = _busiest_device(trace, instances.kernels)
    if skip >= len(mine):
        raise UnanswerableError(f"{instances.source}: {len(mine)} steps, none left after skipping {skip}")
    mine = mine[skip:]
    copies = _copies_of(trace, place)
    known_call = (trace.kernels.call >= 0) & ~starts_before_call(trace)
    steps = tuple(_step(trace, rows, copies, known_call) for rows in mine)
    in_part = find_partial_replays(trace).kernel
    partial = sum(bool(in_part[rows].any()) for rows in mine)
    found = Steps(instances.source, steps, skip, *place, elsewhere, partial)
    if in_part[found.typical.kernels].any():
        raise _recorded_in_part(found)
    return found


# Choosing


def find_instances(trace: Trace, range_name: str | None = None, graph: int | None = None) -> Instances:
    """The steps' kernels, chosen as `find_steps` says; raises what it raises."""
    if range_name is not None:
        rows = match_ranges(trace, range_name)
        return _filled(trace, Instances(f"NVTX range {range_name}", _kernels_of_ranges(trace, rows)))
    if graph is not None:
        return _of_graph(trace, graph)
    repeated, replayed = _repeated_ranges(trace), [g for g, n in _graphs(trace).items() if n > 1]
    if len(repeated) == 1:
        return find_instances(trace, trace.range_names[next(iter(repeated))])
    if not repeated and len(replayed) == 1:
        return _of_graph(trace, replayed[0])
    raise UnknownNameError(f"which steps? {_candidates(trace)}")


def find_largest(trace: Trace) -> Instances | None:
    """Of all that repeats, the range or graph with most kernels (a range before a graph of as many).

    None where nothing repeats. For a picture that must show something; a number needs `find_instances`.
    """
    ranges, graphs = _repeated_ranges(trace), _graph_sizes(trace)
    most = max(ranges.values(), default=0)
    graph, size = max(graphs.items(), key=lambda item: item[1], default=(0, 0))
    if most == size == 0:
        return None
    if most < size:
        return _of_graph(trace, graph)
    code = next(code for code, kernels in ranges.items() if kernels == most)
    rows = np.flatnonzero(trace.ranges.name == code)
    return Instances(f"NVTX range {trace.range_names[code]}", _kernels_of_ranges(trace, rows))


def _filled(trace: Trace, instances: Instances) -> Instances:
    if not instances.kernels:
        raise UnanswerableError(f"{instances.source}: no kernel was launched in it; {_candidates(trace)}")
    return instances


def _repeated_ranges(trace: Trace) -> dict[int, int]:
    """Names of ranges with more than one instance that launched kernels, and how many kernels."""
    members = find_members(trace, np.arange(len(trace.ranges)))
    names = len(trace.range_names)
    instances = np.bincount(trace.ranges.name[np.unique(members.range_row)], minlength=names)
    kernels = np.bincount(trace.ranges.name[members.range_row], minlength=names)
    return {code: int(kernels[code]) for code in np.flatnonzero(instances > 1).tolist()}


def _kernels_of_ranges(trace: Trace, ranges: Rows) -> list[Rows]:
    members = find_members(trace, ranges)
    return _split(trace, members.kernel, members.range_row)


def _split(trace: Trace, kernels: Rows, instance: NDArray[np.integer[Any]]) -> list[Rows]:
    """Kernels by instance, each by start, in order of their first kernel."""
    if not len(kernels):
        return []
    start = trace.kernels.start_ns
    order = np.lexsort((start[kernels], instance))
    parts = np.split(kernels[order], np.flatnonzero(np.diff(instance[order])) + 1)
    return sorted(parts, key=lambda rows: int(start[rows[0]]))


def _graphs(trace: Trace) -> dict[int, int]:
    """Executable graphs and how often each was replayed."""
    rows, graph = find_replayed(trace)
    replays = np.unique(np.stack([graph, trace.kernels.correlation[rows]], axis=1), axis=0)
    return dict(sorted(Counter(replays[:, 0].tolist()).items()))


def _graph_sizes(trace: Trace) -> dict[int, int]:
    """Graphs that were replayed more than once, and how many kernels their replays have."""
    sizes = Counter(find_replayed(trace)[1].tolist())
    return {graph: sizes[graph] for graph, replays in _graphs(trace).items() if replays > 1}


def _of_graph(trace: Trace, graph: int) -> Instances:
    rows, of = find_replayed(trace)
    rows = rows[of == graph]
    if not len(rows):
        raise UnknownNameError(f"no replay of graph {graph}; {_candidates(trace)}")
    return Instances(f"replays of graph {graph}", _split(trace, rows, trace.kernels.correlation[rows]))


def _candidates(trace: Trace) -> str:
    ranges = [f"--range {trace.range_names[i]!r}" for i in _repeated_ranges(trace)]
    graphs = [f"--graph {g} ({n} replays)" for g, n in _graphs(trace).items()]
    there = [*ranges[:8], *graphs[:8]]
    if there:
        return "there is: " + ", ".join(there)
    if len(trace.opaque_replays):
        return "the replays are opaque: record with --cuda-graph-trace=node"
    return "the trace has no NVTX range around its launches and no graph replays; name one with nvtx"


def _busiest_device(trace: Trace, instances: list[Rows]) -> tuple[tuple[int, int], list[Rows], int]:
    """The (process, device) with most kernels, its part of each step, and the steps it has no part in."""
    places = [(key.process, key.device) for key in trace.streams]
    number = {place: i for i, place in enumerate(dict.fromkeys(places))}
    of_stream = np.array([number[place] for place in places], dtype=np.intp)
    parts = [of_stream[trace.kernels.stream[rows]] for rows in instances]
    busiest = int(np.bincount(np.concatenate(parts)).argmax())
    mine = [rows[part == busiest] for rows, part in zip(instances, parts, strict=True)]
    kept = [rows for rows in mine if len(rows)]
    return list(number)[busiest], kept, len(mine) - len(kept)


def _recorded_in_part(steps: Steps) -> UnanswerableError:
    return UnanswerableError(
        f"{steps.source}: {steps.partial} of {len(steps.steps)} steps, the typical one among them, hold "
        "a graph replay with fewer kernels than others of its graph: the rest was not recorded, and the "
        "step's budget would be wrong; record again, for a shorter time"
    )


# The budget of one step


def _step(trace: Trace, rows: Rows, device: Intervals, known_call: Mask) -> Step:
    kernels = trace.kernels
    busy = merge(kernels.start_ns[rows], kernels.end_ns[rows])
    low, high = int(busy[0][0]), int(busy[1][-1])
    copies = clip(*device, low, high)
    both = merge(np.concatenate([busy[0], copies[0]]), np.concatenate([busy[1], copies[1]]))
    kernel_ns, both_ns = (int((end - start).sum()) for start, end in (busy, both))
    white = _split_white(trace, rows, (both[1][:-1], both[0][1:]), known_call)
    return Step(low, high, rows, Budget(high - low, kernel_ns, both_ns - kernel_ns, **white))


def _split_white(trace: Trace, rows: Rows, pieces: Intervals, known_call: Mask) -> dict[str, int]:
    """The pieces of white space by what comes next: a node of the same replay, or a launch and its call."""
    kernels, calls = trace.kernels, trace.calls
    low, high = pieces
    at = np.searchsorted(kernels.start_ns[rows], high)  # the first kernel that starts no earlier
    following, previous = rows[at], rows[at - 1]
    node = (kernels.graph_node[following] != NONE) & (kernels.graph_node[previous] != NONE)
    inside = node & (kernels.correlation[following] == kernels.correlation[previous])
    replay_start = np.flatnonzero(np.diff(kernels.correlation[rows], prepend=NONE))
    head = inside & np.isin(at - 1, replay_start)
    known = known_call[following] & ~inside
    call = kernels.call[following]
    call_start, call_end = (c[call] if len(calls) else high for c in (calls.start_ns, calls.end_ns))
    host, _ = cut(low, high, call_start)
    until_end, queued = cut(low, high, call_end)
    length = high - low
    shares = {
        "replay_ns": (length, inside & ~head),
        "head_ns": (length, head),
        "host_ns": (host, known),
        "call_ns": (until_end - host, known),
        "queued_ns": (queued, known),
        "unknown_ns": (length, ~inside & ~known),
    }
    return {name: int(values[mask].sum()) for name, (values, mask) in shares.items()}


def _copies_of(trace: Trace, place: tuple[int, int]) -> Intervals:
    """Copies and memsets of one device, merged."""
    there = np.array([(key.process, key.device) == place for key in trace.streams], dtype=bool)
    mine = there[trace.copies.stream]
    return merge(trace.copies.start_ns[mine], trace.copies.end_ns[mine])
