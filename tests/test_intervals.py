"""Properties of the interval core, against a count of single nanoseconds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.intervals import Ints, clip, cut, merge, signed_gaps, union_length

Pairs = list[tuple[int, int]]

pairs = st.lists(
    st.tuples(st.integers(-30, 60), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)
points = st.integers(-40, 80)


def columns(intervals: Pairs) -> tuple[Ints, Ints]:
    start, end = zip(*intervals, strict=True) if intervals else ((), ())
    return np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)


def covered(intervals: Pairs) -> set[int]:
    """Every nanosecond in at least one interval."""
    return {t for start, end in intervals for t in range(start, end)}


def spelled(columns: tuple[Ints, Ints]) -> Pairs:
    return list(zip(columns[0].tolist(), columns[1].tolist(), strict=True))


@given(intervals=pairs)
def test_merging_covers_the_same_time(intervals: Pairs) -> None:
    merged = spelled(merge(*columns(intervals)))
    assert covered(merged) == covered(intervals)
    assert all(a_end < b_start for (_, a_end), (b_start, _) in pairwise(merged))


@given(intervals=pairs)
def test_merging_twice_changes_nothing(intervals: Pairs) -> None:
    once = merge(*columns(intervals))
    assert spelled(merge(*once)) == spelled(once)


@given(intervals=pairs, data=st.data())
def test_the_order_of_intervals_is_irrelevant(intervals: Pairs, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(intervals))
    assert spelled(merge(*columns(shuffled))) == spelled(merge(*columns(intervals)))


@given(intervals=pairs)
def test_merging_leaves_its_input_alone(intervals: Pairs) -> None:
    start, end = columns(intervals)
    merge(start, end)
    assert spelled((start, end)) == intervals


@given(intervals=pairs)
def test_busy_and_idle_are_the_span(intervals: Pairs) -> None:
    busy = union_length(*columns(intervals))
    assert busy == len(covered(intervals))
    if intervals:
        low, high = min(s for s, _ in intervals), max(e for _, e in intervals)
        assert busy + len(set(range(low, high)) - covered(intervals)) == high - low


@given(intervals=pairs, low=points, length=st.integers(1, 50))
def test_clipping_keeps_what_is_inside(intervals: Pairs, low: int, length: int) -> None:
    clipped = spelled(clip(*columns(intervals), low, low + length))
    assert covered(clipped) == covered(intervals) & set(range(low, low + length))
    assert all(low <= start <= end <= low + length for start, end in clipped)


@given(intervals=pairs, at=points)
def test_two_windows_share_out_the_busy_time(intervals: Pairs, at: int) -> None:
    parts = [clip(*columns(intervals), low, high) for low, high in ((-100, at), (at, 100))]
    assert sum(union_length(*part) for part in parts) == union_length(*columns(intervals))


@given(intervals=pairs)
def test_gaps_reach_back_to_the_latest_end(intervals: Pairs) -> None:
    ordered = sorted(intervals)
    expected = [start - max(e for _, e in ordered[:i]) for i, (start, _) in enumerate(ordered) if i]
    assert signed_gaps(*columns(ordered)).tolist() == expected


@given(intervals=pairs)
def test_span_is_durations_and_white_space_less_overlap(intervals: Pairs) -> None:
    ordered = sorted(intervals)
    gaps = signed_gaps(*columns(ordered)).tolist()
    white = sum(max(gap, 0) for gap in gaps)
    overlap = sum(
        min(max(-gap, 0), end - start) for gap, (start, end) in zip(gaps, ordered[1:], strict=False)
    )
    if ordered:
        span = max(e for _, e in ordered) - ordered[0][0]
        assert span == sum(e - s for s, e in ordered) + white - overlap


@given(low=points, length=st.integers(-10, 40), at=points)
def test_cut_parts_add_up(low: int, length: int, at: int) -> None:
    before, after = (int(part[0]) for part in cut(*(np.array([x]) for x in (low, low + length, at))))
    inside = range(low, low + length)
    assert (before, after) == (len([t for t in inside if t < at]), len([t for t in inside if t >= at]))


def test_what_only_touches_a_window_is_outside_it() -> None:
    assert spelled(clip(*columns([(0, 10), (12, 12), (20, 30)]), 10, 20)) == [(12, 12)]
