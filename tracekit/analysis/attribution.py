"""Which kernels belong to which NVTX range: by launch, never by overlap in time.

A kernel belongs to a range when the range contains the start of the call that launched it: a
push/pop range of the launching thread, a start/end range of the launching process. The launches of
a thread are sorted once; each range then is a slice of them, found by two binary searches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.errors import UnknownNameError
from tracekit.trace import Codes, Ints, Trace, process_of

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Members:
    """(range, kernel) pairs: every kernel of every range instance asked for.

    An instance inside another one of the same name is left out: the outer one owns its kernels too.
    `continues` says that the kernel before it on its stream key is in the same instance, so that
    the boundary between them belongs to the range.
    """

    range_row: Rows
    kernel: Rows
    continues: Mask


def match_ranges(trace: Trace, wanted: str) -> Rows:
    """Rows of the ranges called `wanted`: by full name, by name without domain, else as a regular
    expression that must match the whole name. Raises `UnknownNameError` listing what there is.
    """
    there = np.unique(trace.ranges.name).tolist()
    names = {code: trace.range_names[code] for code in there}
    for matches in (
        lambda name: name == wanted,
        lambda name: name.partition(":")[2] == wanted,
        lambda name: _full_match(wanted, name),
    ):
        chosen = np.array([code for code, name in names.items() if matches(name)], dtype=np.int32)
        if len(chosen):
            return np.flatnonzero(np.isin(trace.ranges.name, chosen))
    listed = _what_there_is(sorted(names.values()))
    raise UnknownNameError(f"no NVTX range is called or matches {wanted!r}; {listed}")


def find_members(trace: Trace, ranges: Rows) -> Members:
    """The kernels of the given ranges, range by range in the order of their launch."""
    by_thread = ~trace.ranges.process_wide[ranges]
    parts = []
    for rows, scope in ((ranges[by_thread], _threads(trace)), (ranges[~by_thread], _processes(trace))):
        owner = scope.of_range[rows]
        parts.append(_slices(trace, rows, owner, scope.of_call))
    return Members(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True)
class _Scope:
    """Who owns calls and ranges: a thread, or a process."""

    of_call: Ints
    of_range: Ints


def _threads(trace: Trace) -> _Scope:
    return _Scope(trace.calls.thread, trace.ranges.thread)


def _processes(trace: Trace) -> _Scope:
    return _Scope(process_of(trace.calls.thread), process_of(trace.ranges.thread))


def _slices(trace: Trace, rows: Rows, owner: Ints, of_call: Ints) -> tuple[Rows, Rows, Mask]:
    kernels, calls = trace.kernels, trace.calls
    launched = np.flatnonzero(kernels.call >= 0)
    call = kernels.call[launched]
    # Calls are in order of start, so their row number stands for the time.
    order = np.lexsort((call, of_call[call]))
    launched, call = launched[order], call[order]
    position = np.full(len(kernels) + 1, -1, dtype=np.intp)  # the last entry: no kernel before
    position[launched] = np.arange(len(launched))
    low, high = np.zeros(len(rows), dtype=np.intp), np.zeros(len(rows), dtype=np.intp)
    for one in np.unique(owner).tolist():
        mine = owner == one
        first, last = np.searchsorted(of_call[call], [one, one + 1])
        starts = calls.start_ns[call[first:last]]
        low[mine] = first + np.searchsorted(starts, trace.ranges.start_ns[rows[mine]])
        high[mine] = first + np.searchsorted(starts, trace.ranges.end_ns[rows[mine]])
    outermost = _outermost(trace.ranges.name[rows], owner, low, high)
    rows, low, high = rows[outermost], low[outermost], high[outermost]
    count = high - low
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    at = np.repeat(low, count) + within
    kernel = launched[at]
    before = position[kernel - 1]
    same_stream = kernels.stream[kernel] == kernels.stream[kernel - 1]
    continues = (
        same_stream & (kernel > 0) & (before >= np.repeat(low, count)) & (before < np.repeat(high, count))
    )
    return np.repeat(rows, count), kernel, continues


def _outermost(name: Codes, owner: Ints, low: Rows, high: Rows) -> Rows:
    """Instances with launches that no earlier, longer one of the same name and owner holds.

    Without this, ranges that were never closed would list every kernel once for each of them.
    """
    order = np.lexsort((-high, low, owner, name))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(name[order]) != 0) | (np.diff(owner[order]) != 0)
    # Groups are kept apart by more than any position, so one running maximum serves them all.
    reach = high[order] + np.cumsum(new) * (int(high.max(initial=0)) + 1)
    held = np.zeros(len(order), dtype=bool)
    held[1:] = ~new[1:] & (reach[1:] <= np.maximum.accumulate(reach)[:-1])
    return np.sort(order[~held & (high[order] > low[order])])


def _full_match(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def _what_there_is(names: list[str]) -> str:
    if not names:
        return "the trace has no NVTX ranges (record with --trace=cuda,nvtx)"
    shown = ", ".join(names[:12])
    return f"there is: {shown}" + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
