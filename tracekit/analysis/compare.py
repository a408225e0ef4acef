"""Two recordings side by side: by how much each pair's gap and each class of kernel changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracekit.analysis.boundaries import find_boundaries
from tracekit.analysis.checks import find_partial_replays
from tracekit.errors import UnanswerableError
from tracekit.trace import Ints, Recording, Trace

Where = Literal["replay", "launch"]


@dataclass(frozen=True)
class Change:
    """One pair's gap, or one class's kernel duration, in the first and in the second recording.

    A median is None where that recording has none of it.
    """

    key: tuple[str, ...]
    where: Where
    first_count: int
    second_count: int
    first_ns: float | None
    second_ns: float | None

    @property
    def difference_ns(self) -> float | None:
        """Second minus first, None where one of them has none."""
        if self.first_ns is None or self.second_ns is None:
            return None
        return self.second_ns - self.first_ns

    @property
    def weight_ns(self) -> float:
        """How much the change weighs: the difference times the count of the rarer side."""
        return abs(self.difference_ns or 0) * min(self.first_count, self.second_count)


@dataclass(frozen=True)
class Comparison:
    """The changes by pair (gaps) and by class (durations), the weightiest first, and what to know."""

    notes: tuple[str, ...]
    pairs: tuple[Change, ...]
    classes: tuple[Change, ...]


def compare(
    first: Trace, second: Trace, classify: Callable[[str], str], *, force: bool = False
) -> Comparison:
    """Compare two recordings; `classify` gives the class of a kernel by its name.

    Raises `UnanswerableError` where one has no kernels and, unless forced, where one was recorded node by
    node and the other replay by replay (node-level tracing lengthens what it measures) or where graph
    replays were recorded in part.
    """
    notes = _check(first, second, force)
    pairs = _changes(_pair_gaps(first), _pair_gaps(second))
    classes = _changes(_class_durations(first, classify), _class_durations(second, classify))
    return Comparison(notes, pairs, classes)


def _check(first: Trace, second: Trace, force: bool) -> tuple[str, ...]:
    for trace in (first, second):
        if not len(trace.kernels):
            raise UnanswerableError(f"{trace.recording.file}: no kernels in the file, nothing to compare")
    doubts = [*_recorded_unlike(first, second), *_recorded_in_part(first), *_recorded_in_part(second)]
    if doubts and not force:
        raise UnanswerableError(f"{doubts[0]}; record again, or compare anyway with --force")
    return (*doubts, *_what_differs(first, second))


def _recorded_unlike(first: Trace, second: Trace) -> list[str]:
    modes = [_mode(trace.recording) for trace in (first, second)]
    if modes[0] == modes[1]:
        return []
    return [
        f"{first.recording.file} traced CUDA graphs by {modes[0]}, {second.recording.file} by {modes[1]}: "
        "node-level tracing lengthens every kernel of a replay, so the difference would be the profiler's"
    ]


def _recorded_in_part(trace: Trace) -> list[str]:
    count = find_partial_replays(trace).replays
    if not count:
        return []
    return [
        f"{trace.recording.file}: {count} graph replays have fewer kernels than others of their graph: "
        "gaps where kernels are missing are no gaps"
    ]


def _mode(recording: Recording) -> str:
    return recording.graph_trace or "no mode that was recorded"


def _what_differs(first: Trace, second: Trace) -> tuple[str, ...]:
    a, b = first.kernels, second.kernels
    same = len(a) == len(b) and bool((a.start_ns == b.start_ns).all() and (a.end_ns == b.end_ns).all())
    notes = ["Both files hold the same recording."] if same else []
    devices = [{(key.process, key.device) for key in trace.streams} for trace in (first, second)]
    if len(devices[0]) != len(devices[1]):
        notes.append(f"{len(devices[0])} devices in the first file, {len(devices[1])} in the second.")
    return tuple(notes)


# Values by key

Key = tuple[tuple[str, ...], Where]
Values = dict[Key, Ints]


def _pair_gaps(trace: Trace) -> Values:
    boundaries = find_boundaries(trace)
    rows = np.flatnonzero(boundaries.exists)
    name = trace.kernels.name.astype(np.int64)
    code = (name[rows - 1] * len(trace.names) + name[rows]) * 2 + boundaries.replay[rows]
    groups = _group(code, boundaries.gap_ns[rows])
    return {_spell_pair(trace, int(key)): values for key, values in groups}


def _spell_pair(trace: Trace, code: int) -> Key:
    names, replay = divmod(code, 2)
    previous, following = divmod(names, len(trace.names))
    return (trace.names[previous], trace.names[following]), _where(replay)


def _class_durations(trace: Trace, classify: Callable[[str], str]) -> Values:
    """Durations by class; a kernel's place is that of the boundary into it."""
    kernels, replay = trace.kernels, find_boundaries(trace).replay
    groups = _group(kernels.name.astype(np.int64) * 2 + replay, kernels.end_ns - kernels.start_ns)
    found: defaultdict[Key, list[Ints]] = defaultdict(list)
    for key, values in groups:
        found[(classify(trace.names[int(key) // 2]),), _where(int(key) % 2)].append(values)
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _where(replay: int) -> Where:
    return "replay" if replay else "launch"


def _group(code: Ints, values: Ints) -> list[tuple[int, Ints]]:
    order = np.argsort(code, kind="stable")
    distinct, first = np.unique(code[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(values[order], first[1:]), strict=True)) if len(code) else []


def _changes(first: Values, second: Values) -> tuple[Change, ...]:
    empty = np.empty(0, dtype=np.int64)
    changes = [
        _change(key, first.get(key, empty), second.get(key, empty)) for key in first.keys() | second.keys()
    ]
    return tuple(sorted(changes, key=lambda c: (-c.weight_ns, -max(c.first_count, c.second_count), c.key)))


def _change(key: Key, first: Ints, second: Ints) -> Change:
    medians = [float(np.median(side)) if len(side) else None for side in (first, second)]
    return Change(*key, len(first), len(second), *medians)
