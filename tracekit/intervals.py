"""Half-open intervals [start, end) on one integer clock: the arithmetic everything rests on.

Pure; no imports from the package. Arrays are int64; intervals need not be sorted unless said.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def merge(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of the intervals as disjoint ones in order of start.

    Touching intervals become one; empty ones vanish unless they touch nothing.
    """
    if len(start) == 0:
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.concatenate((first[1:] - 1, [len(start) - 1]))
    return start[first], reach[last]


def union_length(start: Ints, end: Ints) -> int:
    """Nanoseconds covered by at least one interval."""
    merged_start, merged_end = merge(start, end)
    return int((merged_end - merged_start).sum())


def clip(start: Ints, end: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """The parts of the intervals inside [low, high); those outside it are left out."""
    inside = (end > low) & (start < high)
    return np.maximum(start[inside], low), np.minimum(end[inside], high)


def signed_gaps(start: Ints, end: Ints) -> Ints:
    """`start[i] - max(end[:i])` for intervals of one stream in order of start; the first is left out.

    Negative where an earlier interval still runs; never clipped.
    """
    if len(start) == 0:
        return start
    return start[1:] - np.maximum.accumulate(end)[:-1]


def cut(low: Ints, high: Ints, at: Ints) -> tuple[Ints, Ints]:
    """Lengths of [low, high) before and after the point `at`; an interval of high < low is empty."""
    length = np.maximum(high - low, 0)
    before = np.clip(at - low, 0, length)
    return before, length - before
