"""Distributions of a quantity by group, exact in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.trace import Codes, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """Minimum, percentiles, maximum and mean of some nanoseconds."""

    min: int
    p10: float
    median: float
    p90: float
    p99: float
    max: int
    mean: float


@dataclass(frozen=True)
class Groups:
    """Values sorted by group, then by size; group `g` is `values[edges[g]:edges[g + 1]]`."""

    values: Ints
    edges: NDArray[np.intp]

    def percentiles(self, share: float) -> Floats:
        """One percentile a group, interpolated linearly as NumPy does; NaN for an empty group."""
        low, count = self.edges[:-1], np.diff(self.edges)
        at = share * np.maximum(count - 1, 0)
        below = np.floor(at).astype(np.intp)
        above = np.minimum(below + 1, np.maximum(count - 1, 0))
        if not len(self.values):
            return np.full(len(low), np.nan)
        last = len(self.values) - 1
        a, b = self.values[np.minimum(low + below, last)], self.values[np.minimum(low + above, last)]
        weight = at - below
        lerp = np.where(weight >= 0.5, b - (b - a) * (1 - weight), a + (b - a) * weight)
        return np.where(count > 0, lerp, np.nan)

    @property
    def counts(self) -> NDArray[np.intp]:
        """How many values each group has."""
        return np.diff(self.edges)

    @property
    def totals(self) -> Ints:
        """The sum of each group's values."""
        total: Ints = np.concatenate(([0], np.cumsum(self.values)))
        return total[self.edges[1:]] - total[self.edges[:-1]]

    def distributions(self) -> list[Distribution | None]:
        """One distribution a group, None for an empty one."""
        count, sums = self.counts, self.totals.tolist()
        quantiles = [self.percentiles(share).tolist() for share in (0.1, 0.5, 0.9, 0.99)]
        marks = zip(*quantiles, strict=True)
        return [
            self._distribution(low, n, total_ns, mark) if n else None
            for low, n, total_ns, mark in zip(
                self.edges[:-1].tolist(), count.tolist(), sums, marks, strict=True
            )
        ]

    def _distribution(self, low: int, count: int, total_ns: int, marks: tuple[float, ...]) -> Distribution:
        p10, median, p90, p99 = marks
        least, most = int(self.values[low]), int(self.values[low + count - 1])
        return Distribution(least, p10, median, p90, p99, most, total_ns / count)


def group(codes: Codes, values: Ints, groups: int) -> Groups:
    """Sort the values by group and size. `codes` are in `0 .. groups - 1`."""
    order = _argsort(values)
    small = codes.astype(np.uint16) if groups <= 2**16 else codes  # 16 bits are sorted by radix
    order = order[np.argsort(small[order], kind="stable")]
    edges = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=groups)))).astype(np.intp)
    return Groups(values[order], edges)


def sum_by(codes: Codes, values: Ints, groups: int) -> Ints:
    """Exact sums by group. `codes` are in `0 .. groups - 1`."""
    if not values.any():
        return np.zeros(groups, dtype=np.int64)
    if int(np.abs(values).sum()) < 2**53:  # then floats add exactly
        return np.bincount(codes, weights=values, minlength=groups).astype(np.int64)
    sums = np.zeros(groups, dtype=np.int64)
    np.add.at(sums, codes, values)
    return sums


def count_by(codes: Codes, mask: NDArray[np.bool_], groups: int) -> Ints:
    """How many entries of each group are marked."""
    return np.bincount(codes[mask], minlength=groups).astype(np.int64)


def _argsort(values: Ints) -> NDArray[np.intp]:
    low = int(values.min()) if len(values) else 0
    if len(values) and int(values.max()) - low < 2**16:
        return np.argsort((values - low).astype(np.uint16), kind="stable")
    return np.argsort(values)


def detect_tick(durations_ns: Ints) -> int | None:
    """The granularity of the file's timestamps: 1000, 32 or 5 ns, or None where there is no grid.

    The tick is the largest of these that nine in ten durations are a multiple of, give or take the
    nanosecond that the conversion to the host's clock rounds off (none is given at 5 ns, where it
    would hide everything). On NVIDIA GPUs since Turing it is 32 ns. None below 16 distinct durations.
    """
    sample = durations_ns[:: len(durations_ns) // 100_000 + 1]
    if len(np.unique(sample)) < 16:
        return None
    for tick, slack in ((1000, 1), (32, 1), (5, 0)):
        off = np.minimum(sample % tick, tick - sample % tick)
        if np.mean(off <= slack) >= 0.9:
            return tick
    return None
