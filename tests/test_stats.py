"""Distributions by group equal NumPy's, group by group; the clock tick is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.stats import detect_tick, group, sum_by
from tracekit.trace import Codes, Ints

SHARES = {"p10": 10, "median": 50, "p90": 90, "p99": 99}
sizes = st.one_of(st.integers(-50, 50), st.sampled_from([-(2**40), 2**16, 2**31, 2**52]))
grouped = st.lists(st.tuples(st.integers(0, 3), sizes), max_size=30)


def columns(rows: list[tuple[int, int]]) -> tuple[Codes, Ints]:
    return np.array([c for c, _ in rows], dtype=np.int32), np.array([v for _, v in rows], dtype=np.int64)


@given(rows=grouped)
def test_distributions_equal_numpy(rows: list[tuple[int, int]]) -> None:
    for code, found in enumerate(group(*columns(rows), 4).distributions()):
        own = [value for c, value in rows if c == code]
        if not own:
            assert found is None
            continue
        assert found is not None
        assert (found.min, found.max) == (min(own), max(own))
        assert found.mean == pytest.approx(sum(own) / len(own), rel=1e-12)
        for name, percent in SHARES.items():
            assert getattr(found, name) == pytest.approx(np.percentile(own, percent), rel=1e-12, abs=1e-9)


@given(rows=grouped)
def test_sums_by_group_are_exact(rows: list[tuple[int, int]]) -> None:
    codes, values = columns(rows)
    expected = [sum(v for c, v in rows if c == code) for code in range(4)]
    assert sum_by(codes, values, 4).tolist() == expected
    assert group(codes, values, 4).totals.tolist() == expected


def test_many_groups() -> None:
    """More than 16 bits of them: another way to sort."""
    codes = np.arange(70_000, dtype=np.int32)[::-1]
    values = codes.astype(np.int64) * 3
    found = group(codes, values, 70_000).distributions()
    assert [one.median for one in found if one] == [3 * i for i in range(70_000)]


@pytest.mark.parametrize("tick", [1000, 32, 5, None])
def test_the_tick_of_the_clock(tick: int | None) -> None:
    dice = np.random.default_rng(1)
    durations = dice.integers(50, 5000, 400)
    assert detect_tick(durations * tick if tick else durations) == tick


def test_a_tick_survives_rounding_and_a_few_others() -> None:
    dice = np.random.default_rng(2)
    durations = dice.integers(20, 5000, 400) * 32 + dice.integers(-1, 2, 400)
    durations[:20] += 13
    assert detect_tick(durations) == 32


def test_few_durations_show_no_tick() -> None:
    assert detect_tick(np.array([32, 64, 96] * 100)) is None
    assert detect_tick(np.array([], dtype=np.int64)) is None


def test_sixteen_durations_are_enough_for_a_tick_and_nine_in_ten_of_them() -> None:
    grid = np.arange(10, 26) * 32
    assert (detect_tick(grid), detect_tick(grid[1:])) == (32, None)
    assert detect_tick(np.concatenate([np.arange(10, 100) * 32, np.arange(10) * 32 + 7])) == 32
    assert detect_tick(np.concatenate([np.arange(11, 100) * 32, np.arange(11) * 32 + 7])) is None


@pytest.mark.parametrize(("tick", "off"), [(1000, 2), (32, 2), (5, 1)])
def test_what_rounding_does_not_explain_is_no_tick(tick: int, off: int) -> None:
    assert detect_tick(np.arange(10, 400) * tick + off) is None


def test_the_tick_of_100_000_kernels_and_more_is_that_of_every_second() -> None:
    durations = np.arange(10, 200_009) * 32 + np.arange(199_999) % 2 * 7
    found = [detect_tick(durations[:count]) for count in (99_999, 100_000, 199_999)]
    assert found == [None, 32, 32]


def test_sums_beyond_what_floats_hold_are_exact() -> None:
    codes, values = columns([(0, 2**53), (0, 1), (1, 3)])
    sums = sum_by(codes, values, 2)
    assert sums.tolist() == [2**53 + 1, 3]
    assert sums.dtype == np.dtype(np.int64)


@pytest.mark.parametrize("spread", [2**16 - 1, 2**16, 2**17 - 1])
def test_values_a_little_more_than_16_bits_apart_are_in_order(spread: int) -> None:
    (found,) = group(*columns([(0, spread), (0, 0), (0, 7)]), 1).distributions()
    assert found is not None
    assert (found.min, found.median, found.max) == (0, 7, spread)


def test_half_way_between_two_values_rounds_as_numpy_does() -> None:
    codes, values = columns([(0, 2**53 + 1), (0, 2**53 + 3)])
    assert group(codes, values, 1).percentiles(0.5).tolist() == [np.percentile(values, 50)]
    assert np.percentile(values, 50) == 2**53 + 4
