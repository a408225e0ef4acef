"""Busy and idle time of devices: unions of intervals, never sums over streams."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracekit.intervals import clip, merge
from tracekit.trace import Codes, Ints, Trace

Intervals = tuple[Ints, Ints]


@dataclass(frozen=True)
class DeviceTime:
    """Busy and idle time of one CUDA device of one process: span = busy + idle.

    Busy is the union of kernels, copies, memsets and opaque replays; `copy_only_ns` is the part of
    it that copies and memsets cover alone. The span runs from the device's first activity to its
    last, or is the window.
    """

    process: int
    device: int
    span_ns: int
    busy_ns: int
    copy_only_ns: int

    @property
    def idle_ns(self) -> int:
        """The rest of the span."""
        return self.span_ns - self.busy_ns


@dataclass(frozen=True)
class GpuTime:
    """Busy and idle time of a physical GPU, over all processes that used it."""

    device: int
    span_ns: int
    busy_ns: int

    @property
    def idle_ns(self) -> int:
        """The rest of the span."""
        return self.span_ns - self.busy_ns


@dataclass(frozen=True)
class BusyTimes:
    """Busy and idle time by (process, device), and by physical GPU where the recording maps them."""

    devices: tuple[DeviceTime, ...]
    gpus: tuple[GpuTime, ...]


def measure_busy(trace: Trace, window: tuple[int, int] | None = None) -> BusyTimes:
    """Busy and idle time of every device with any activity, in order of (process, device).

    A window clips activity and is the span: its edges count as idle.
    """
    work, copies = _activity(trace)
    devices, by_gpu = [], defaultdict(list)
    for key in sorted(work.keys() | copies.keys()):
        kernel = _clipped(merge(*_joined(work[key])), window)
        both = merge(*_joined([kernel, _clipped(merge(*_joined(copies[key])), window)]))
        busy = _length(both)
        devices.append(DeviceTime(*key, _span(both, window), busy, busy - _length(kernel)))
        if key in trace.recording.gpu_of_device:
            by_gpu[trace.recording.gpu_of_device[key]].append(both)
    gpus = []
    for gpu, parts in sorted(by_gpu.items()):
        union = merge(*_joined(parts)) if len(parts) > 1 else parts[0]
        gpus.append(GpuTime(gpu, _span(union, window), _length(union)))
    return BusyTimes(tuple(devices), tuple(gpus))


def _length(merged: Intervals) -> int:
    return int((merged[1] - merged[0]).sum())


def _span(merged: Intervals, window: tuple[int, int] | None) -> int:
    return window[1] - window[0] if window else int(merged[1][-1] - merged[0][0])


Activity = defaultdict[tuple[int, int], list[Intervals]]


def _clipped(merged: Intervals, window: tuple[int, int] | None) -> Intervals:
    return clip(*merged, *window) if window else merged


def _activity(trace: Trace) -> tuple[Activity, Activity]:
    """Kernels and opaque replays, and copies and memsets, by (process, device)."""
    work: Activity = defaultdict(list)
    copies: Activity = defaultdict(list)
    for table, found in ((trace.kernels, work), (trace.opaque_replays, work), (trace.copies, copies)):
        start, end = table.start_ns, table.end_ns
        order = None if _grouped(table.stream) else np.argsort(table.stream, kind="stable")
        stream = table.stream if order is None else table.stream[order]
        edges = np.flatnonzero(np.diff(stream, prepend=-1, append=-1)).tolist() if len(stream) else []
        for low, high in pairwise(edges):
            rows = slice(low, high) if order is None else order[low:high]
            key = trace.streams[stream[low]]
            found[key.process, key.device].append((start[rows], end[rows]))
    return work, copies


def _grouped(stream: Codes) -> bool:
    return bool((stream[1:] >= stream[:-1]).all())


def _joined(parts: list[Intervals]) -> Intervals:
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, dtype=np.int64)
    return np.concatenate([empty, *(s for s, _ in parts)]), np.concatenate([empty, *(e for _, e in parts)])
