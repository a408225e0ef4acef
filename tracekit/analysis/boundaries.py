"""The boundaries between kernels: how long the gap is, what kind it is, and what caused it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracekit.intervals import cut, signed_gaps
from tracekit.trace import NONE, WHOLE_CONTEXT, Codes, Ints, StreamKey, Trace

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Boundaries:
    """One entry a kernel: the boundary from the kernel before it on its stream key.

    Entries are in the order of `Trace.kernels`, so the kernel before entry `i` is row `i - 1`.
    Where `exists` is false the kernel is the first of its stream key and the rest means nothing.
    Gaps are signed: next start minus the latest end of any earlier kernel of the stream key.
    """

    exists: Mask
    gap_ns: Ints
    replay: Mask  # inside one graph replay; everything else is a launch boundary
    head: Mask  # the first boundary of a replay
    interrupted: Mask  # a copy, a memset or a host wait of the stream ended in between

    @property
    def white_ns(self) -> Ints:
        """The white space: the positive part of each gap."""
        return np.maximum(self.gap_ns, 0)


@dataclass(frozen=True)
class Causes:
    """The white space of each boundary, split by cause; the four add up to it."""

    host_ns: Ints
    call_ns: Ints
    queued_ns: Ints
    unknown_ns: Ints


def find_boundaries(trace: Trace) -> Boundaries:
    """Measure every boundary of the trace."""
    kernels = trace.kernels
    first = _first_of_stream(trace)
    gap_ns = np.zeros(len(kernels), dtype=np.int64)
    for low, high in _stream_slices(trace):
        gap_ns[low + 1 : high] = signed_gaps(kernels.start_ns[low:high], kernels.end_ns[low:high])
    replay = _same_replay(trace) & ~first
    return Boundaries(~first, gap_ns, replay, _heads(trace, replay), _interrupted(trace) & ~first)


def find_causes(trace: Trace, boundaries: Boundaries) -> Causes:
    """Cut each white space at the start and the end of the next kernel's launch call.

    Before the call `host`, during it `call`, after it `queued`; `unknown` without a launch call,
    and where the kernel starts before its own call (then the two do not belong together).
    """
    kernels, calls = trace.kernels, trace.calls
    white = boundaries.white_ns
    known = (kernels.call >= 0) & ~starts_before_call(trace)
    zero = np.zeros(len(kernels), dtype=np.int64)
    call_start = calls.start_ns[kernels.call] if len(calls) else zero
    call_end = calls.end_ns[kernels.call] if len(calls) else zero
    low, high = kernels.start_ns - white, kernels.start_ns
    host, _ = cut(low, high, call_start)
    until_end, queued = cut(low, high, call_end)
    causes = Causes(host, until_end - host, queued, unknown_ns=np.where(known, 0, white))
    if not known.all():
        for column in (causes.host_ns, causes.call_ns, causes.queued_ns):
            column[~known] = 0
    return causes


def starts_before_call(trace: Trace) -> Mask:
    """Kernels that start before the call said to have launched them: a wrong join in the recording."""
    kernels, calls = trace.kernels, trace.calls
    if not len(calls):
        return np.zeros(len(kernels), dtype=bool)
    return (kernels.call >= 0) & (kernels.start_ns < calls.start_ns[kernels.call])


def find_replayed(trace: Trace) -> tuple[NDArray[np.intp], Ints]:
    """Rows of the kernels inside graph replays, and the number of each one's executable graph: the upper
    half of its node id (pytorch#191689)."""
    kernels = trace.kernels
    rows = np.flatnonzero((kernels.graph_node != NONE) & (kernels.correlation != NONE))
    return rows, kernels.graph_node[rows] >> 32


def _first_of_stream(trace: Trace) -> Mask:
    stream = trace.kernels.stream
    first = np.ones(len(stream), dtype=bool)
    first[1:] = stream[1:] != stream[:-1]
    return first


def _stream_slices(trace: Trace) -> list[tuple[int, int]]:
    edges = [*np.flatnonzero(_first_of_stream(trace)).tolist(), len(trace.kernels)]
    return list(pairwise(edges))


def _same_replay(trace: Trace) -> Mask:
    kernels = trace.kernels
    node = (kernels.graph_node != NONE) & (kernels.correlation != NONE)
    same = np.zeros(len(kernels), dtype=bool)
    same[1:] = node[1:] & node[:-1] & (kernels.correlation[1:] == kernels.correlation[:-1])
    return same


def _heads(trace: Trace, replay: Mask) -> Mask:
    """The earliest boundary of each replay, of whichever stream."""
    kernels = trace.kernels
    starts = replay.copy()
    starts[1:] &= ~replay[:-1]  # first boundary of the replay on its stream
    rows = np.flatnonzero(starts)
    rows = rows[np.argsort(kernels.start_ns[rows], kind="stable")]
    process = np.array([key.process for key in trace.streams], dtype=np.int64)[kernels.stream[rows]]
    replays = np.stack([process, kernels.correlation[rows]], axis=1)
    _, earliest = np.unique(replays, axis=0, return_index=True)
    head = np.zeros(len(replay), dtype=bool)
    head[rows[earliest]] = True
    return head


def _interrupted(trace: Trace) -> Mask:
    """Entries with a copy, memset or host wait of the stream that ends after the previous kernel
    starts and not after the next one does."""
    marked = np.zeros(len(trace.kernels), dtype=bool)
    interruptions = _interruptions(trace)
    for low, high in _stream_slices(trace):
        ends = interruptions.get(int(trace.kernels.stream[low]))
        if ends is not None:
            after = low + np.searchsorted(trace.kernels.start_ns[low:high], ends, side="left")
            marked[after[(after > low) & (after < high)]] = True
    return marked


def _interruptions(trace: Trace) -> dict[int, Ints]:
    """Ends of what interrupts each stream that has kernels; a context's wait stops all its streams.

    An opaque replay does too: its kernels ran there, though the file does not show them.
    """
    keys, tables = trace.streams, (trace.copies, trace.waits, trace.opaque_replays)
    stream = np.concatenate([table.stream for table in tables])
    end = np.concatenate([table.end_ns for table in tables])
    order = np.argsort(stream, kind="stable")
    by_stream = dict(zip(*_split(stream[order], end[order]), strict=True))
    found = {}
    for code in np.unique(trace.kernels.stream).tolist():
        context = _code_of(keys, keys[code])
        parts = [by_stream[c] for c in (code, context) if c in by_stream]
        if parts:
            found[code] = np.concatenate(parts)
    return found


def _code_of(keys: tuple[StreamKey, ...], key: StreamKey) -> int:
    whole = StreamKey(key.process, key.device, key.context, WHOLE_CONTEXT)
    return keys.index(whole) if whole in keys else -1


def _split(code: Codes, values: Ints) -> tuple[list[int], list[Ints]]:
    if not len(code):
        return [], []
    edges = np.flatnonzero(np.diff(code)) + 1
    return [int(c) for c in code[np.concatenate(([0], edges))]], np.split(values, edges)
