"""Steps laid over one another, each from the start of its first kernel: what varies is jitter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.steps import Instances
from tracekit.trace import Ints, Trace

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Overlay:
    """Instances of an equal number of kernels, aligned at the start of their first kernel.

    `point` are the kernel numbers looked at, `start_ns[i]` when each started in instance `shown[i]`,
    `median_ns` the median over all `alike` instances. `length_ns` is of every instance, from its first
    kernel's start to its last kernel's end.
    """

    label: str
    kernels: int
    alike: int
    point: Rows
    shown: Rows
    start_ns: Ints
    median_ns: Floats
    length_ns: Ints


def overlay(trace: Trace, instances: Instances, shown: int = 40, points: int = 400) -> Overlay:
    """Lay the instances over one another: at most `shown` of them, at most `points` kernels of each."""
    kernels, sizes = trace.kernels, np.array([len(rows) for rows in instances.kernels])
    size = Counter(sizes.tolist()).most_common(1)[0][0]
    alike = np.flatnonzero(sizes == size)
    point = _spread(size, points)
    starts = kernels.start_ns[np.stack([instances.kernels[i][point] for i in alike])]
    starts = starts - starts[:, :1]
    chosen = _spread(len(alike), shown)
    ends = [int(kernels.end_ns[rows].max() - kernels.start_ns[rows[0]]) for rows in instances.kernels]
    return Overlay(
        label=instances.source,
        kernels=int(size),
        alike=len(alike),
        point=point,
        shown=alike[chosen],
        start_ns=starts[chosen],
        median_ns=np.median(starts, axis=0),
        length_ns=np.array(ends, dtype=np.int64),
    )


def _spread(count: int, most: int) -> Rows:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))
