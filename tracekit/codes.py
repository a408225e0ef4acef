"""Distinct values as small codes, and look-ups by value: what SQL calls a dictionary and a join.

Ids in a trace are mostly small and dense, so a table indexed by the value beats sorting; where
they are not, sorting takes over. Both give the same answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]


def encode(values: Ints) -> tuple[Codes, Ints]:
    """Replace each value by its index into the sorted distinct values: (codes, distinct)."""
    if len(values) == 0:
        return np.empty(0, np.int32), values
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.zeros(len(values), dtype=np.int32), values[:1]
    if not _dense(low, high, len(values)):
        distinct, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int32), distinct
    shifted = values - low
    present = np.zeros(high - low + 1, dtype=bool)
    present[shifted] = True
    table = np.cumsum(present, dtype=np.int32) - 1
    return table[shifted], np.flatnonzero(present) + low


def encode_rows(columns: list[Ints]) -> tuple[Codes, list[Ints]]:
    """Encode the distinct rows of several columns: (codes, the columns of the distinct rows).

    Distinct rows are sorted by the first column, then the next.
    """
    code, first = encode(columns[0])
    distinct = [first]
    for column in columns[1:]:
        part, values = encode(column)
        if len(values) <= 1:  # nearly always: one process, one device, one context
            distinct.append(np.repeat(values, len(distinct[0])))
            continue
        code, rows = encode(code.astype(np.int64) * len(values) + part)
        before, here = np.divmod(rows, len(values))
        distinct = [known[before] for known in distinct] + [values[here]]
    return code, distinct


def find_first(keys: Ints, wanted: Ints) -> Codes:
    """For each wanted value the position of its first occurrence in `keys`, or -1."""
    if len(keys) == 0:
        return np.full(len(wanted), -1, dtype=np.int32)
    low, high = int(keys.min()), int(keys.max())
    if not _dense(low, high, len(keys) + len(wanted)):
        return _find_sorted(keys, wanted)
    table = np.full(high - low + 2, -1, dtype=np.int32)
    # Of equal keys the last write stays: written backwards, the first occurrence wins.
    table[(keys - low)[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
    inside = (wanted >= low) & (wanted <= high)
    return table[wanted - low if inside.all() else np.where(inside, wanted - low, high - low + 1)]


def _find_sorted(keys: Ints, wanted: Ints) -> Codes:
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    found = order[at]
    return np.where(keys[found] == wanted, found, -1).astype(np.int32)


def _dense(low: int, high: int, count: int) -> bool:
    return high - low < 8 * count + 65536
