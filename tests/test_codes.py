"""Codes and look-ups equal a dictionary's, where values are dense and where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.codes import encode, encode_rows, find_first

DENSE = st.integers(-5, 5)
SPARSE = st.sampled_from([-(2**63), -(2**62), -1, 0, 1, 2**40, 2**40 + 1, 2**62, 2**63 - 1])
values = st.one_of(
    st.lists(DENSE, max_size=20), st.lists(SPARSE, max_size=20), st.lists(DENSE | SPARSE, max_size=20)
)
EDGE = 8 * 4 + 65536  # from this range on, four values are sparse


def ints(listed: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(listed, dtype=np.int64)


@given(listed=values)
def test_codes_count_the_sorted_distinct_values(listed: list[int]) -> None:
    codes, distinct = encode(ints(listed))
    assert distinct.tolist() == sorted(set(listed))
    assert [distinct[code] for code in codes] == listed


@given(rows=st.lists(st.tuples(DENSE, SPARSE, DENSE | SPARSE), min_size=1, max_size=20))
def test_codes_of_rows(rows: list[tuple[int, int, int]]) -> None:
    codes, distinct = encode_rows([ints(list(column)) for column in zip(*rows, strict=True)])
    listed = list(zip(*(column.tolist() for column in distinct), strict=True))
    assert listed == sorted(set(rows))
    assert [listed[code] for code in codes] == rows


@given(keys=values, wanted=values)
def test_the_first_occurrence_is_found(keys: list[int], wanted: list[int]) -> None:
    first: dict[int, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    assert find_first(ints(keys), ints(wanted)).tolist() == [first.get(value, -1) for value in wanted]


@pytest.mark.parametrize("high", [EDGE - 1, EDGE, EDGE + 1, 2**63 - 1])
def test_both_ways_agree_where_they_meet(high: int) -> None:
    keys = [high, 0, high, 7]
    codes, distinct = encode(ints(keys))
    assert (codes.tolist(), distinct.tolist()) == ([2, 0, 2, 1], [0, 7, high])
    assert find_first(ints(keys), ints([high, 7, 8, -1])).tolist() == [0, 3, -1, -1]


def test_nothing() -> None:
    nothing = ints([])
    assert [part.tolist() for part in encode(nothing)] == [[], []]
    assert find_first(nothing, ints([1])).tolist() == [-1]
    assert find_first(ints([1]), nothing).tolist() == []


def test_sparse_keys_that_repeat_are_found_where_they_are_first() -> None:
    """More of them than a sort that is not stable leaves in order."""
    keys = ints([2**62, 0, -(2**62)] * 500)
    assert find_first(keys, ints([-(2**62), 2**62, 0])).tolist() == [2, 0, 1]


def test_wanted_beyond_the_largest_sparse_key() -> None:
    assert find_first(ints([0, 2**62]), ints([2**62 + 1, -1])).tolist() == [-1, -1]


@pytest.mark.parametrize("high", [1, 2**62])
def test_codes_are_32_bits_wide(high: int) -> None:
    keys = ints([0, high])
    assert encode(keys)[0].dtype == find_first(keys, keys).dtype == np.int32
    assert find_first(ints([]), keys).dtype == np.int32
