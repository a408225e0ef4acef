"""What repeats in a trace: the instances of one NVTX range, or the replays of one executable graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.attribution import find_members, match_ranges
from tracekit.codes import encode_rows
from tracekit.trace import NONE, Ints, Trace

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]

FEWEST = 3  # instances from which something repeats, where nobody said what a step is


@dataclass(frozen=True)
class Iterations:
    """The kernels of each instance: those of number `i` are `kernel[edges[i]:edges[i + 1]]`, by start."""

    label: str
    kernel: Rows
    edges: Rows

    def __len__(self) -> int:
        return len(self.edges) - 1


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


def find_iterations(trace: Trace, range_name: str | None = None) -> Iterations | None:
    """The instances of a range; unasked, of the range or graph that repeats and has the most kernels.

    A range wins over a graph of equally many. None where nothing repeats. Raises `UnknownNameError`
    for a range that does not exist.
    """
    if range_name is not None:
        return _of_ranges(trace, range_name, match_ranges(trace, range_name))
    candidates = [c for c in (*_every_range(trace), *_every_graph(trace)) if len(c) >= FEWEST]
    return max(candidates, key=lambda c: len(c.kernel), default=None)


def overlay(trace: Trace, iterations: Iterations, shown: int = 40, points: int = 400) -> Overlay:
    """Lay the instances over one another: at most `shown` of them, at most `points` kernels of each."""
    kernels, sizes = trace.kernels, np.diff(iterations.edges)
    size = Counter(sizes.tolist()).most_common(1)[0][0]
    alike = np.flatnonzero(sizes == size)
    point = _spread(size, points)
    starts = kernels.start_ns[iterations.kernel[iterations.edges[alike][:, None] + point[None, :]]]
    starts = starts - starts[:, :1]
    chosen = _spread(len(alike), shown)
    return Overlay(
        label=iterations.label,
        kernels=int(size),
        alike=len(alike),
        point=point,
        shown=alike[chosen],
        start_ns=starts[chosen],
        median_ns=np.median(starts, axis=0),
        length_ns=_lengths(trace, iterations),
    )


def _spread(count: int, most: int) -> Rows:
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def _lengths(trace: Trace, iterations: Iterations) -> Ints:
    low = iterations.edges[:-1]
    end = np.maximum.reduceat(trace.kernels.end_ns[iterations.kernel], low)
    return end - trace.kernels.start_ns[iterations.kernel[low]]


def _every_range(trace: Trace) -> Iterator[Iterations]:
    for code in np.flatnonzero(np.bincount(trace.ranges.name) >= FEWEST).tolist():
        found = _of_ranges(trace, trace.range_names[code], np.flatnonzero(trace.ranges.name == code))
        if found:
            yield found


def _every_graph(trace: Trace) -> Iterator[Iterations]:
    kernels = trace.kernels
    nodes = np.flatnonzero((kernels.graph_node != NONE) & (kernels.correlation != NONE))
    process = np.array([key.process for key in trace.streams], dtype=np.int64)[kernels.stream[nodes]]
    graph = kernels.graph_node[nodes] >> 32
    code, distinct = encode_rows([process, graph])
    for one in range(len(distinct[0]) if len(nodes) else 0):
        mine = code == one
        found = _split(trace, f"graph {distinct[1][one]}", nodes[mine], kernels.correlation[nodes[mine]])
        if found:
            yield found


def _of_ranges(trace: Trace, name: str, ranges: Rows) -> Iterations | None:
    members = find_members(trace, ranges)
    return _split(trace, f"range {name}", members.kernel, members.range_row.astype(np.int64))


def _split(trace: Trace, label: str, kernel: Rows, instance: Ints) -> Iterations | None:
    """One instance a distinct value, in order of their first kernel."""
    if not len(kernel):
        return None
    start = trace.kernels.start_ns[kernel]
    distinct, code = np.unique(instance, return_inverse=True)
    first = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(first, code, start)
    rank = np.argsort(np.argsort(first, kind="stable"), kind="stable")[code]
    order = np.lexsort((start, rank))
    edges = np.concatenate(([0], np.cumsum(np.bincount(rank))))
    return Iterations(label, kernel[order], edges.astype(np.intp))
