"""Busy and idle time of devices: unions of intervals, never sums over streams."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tracekit.intervals import clip, merge, union_length
from tracekit.trace import Ints, Trace

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


def device_times(trace: Trace, window: tuple[int, int] | None = None) -> tuple[DeviceTime, ...]:
    """Busy and idle time by (process, device), of devices with any activity, in that order."""
    work, copies = _activity(trace, window)
    times = []
    for key in sorted(work.keys() | copies.keys()):
        kernel = merge(*_joined(work[key]))
        both = merge(*_joined([kernel, *copies[key]]))
        span = window[1] - window[0] if window else int(both[1][-1] - both[0][0])
        busy = int((both[1] - both[0]).sum())
        times.append(DeviceTime(*key, span, busy, busy - int((kernel[1] - kernel[0]).sum())))
    return tuple(times)


def gpu_times(trace: Trace, window: tuple[int, int] | None = None) -> tuple[GpuTime, ...]:
    """Busy and idle time by physical GPU; only of GPUs that the recording maps devices to."""
    work, copies = _activity(trace, window)
    by_gpu: defaultdict[int, list[Intervals]] = defaultdict(list)
    for key in work.keys() | copies.keys():
        if key in trace.recording.gpu_of_device:
            by_gpu[trace.recording.gpu_of_device[key]] += [*work[key], *copies[key]]
    times = []
    for gpu, parts in sorted(by_gpu.items()):
        start, end = _joined(parts)
        span = window[1] - window[0] if window else int(end.max() - start.min())
        times.append(GpuTime(gpu, span, union_length(start, end)))
    return tuple(times)


Activity = defaultdict[tuple[int, int], list[Intervals]]


def _activity(trace: Trace, window: tuple[int, int] | None) -> tuple[Activity, Activity]:
    """Kernels and opaque replays, and copies and memsets, by (process, device)."""
    work: Activity = defaultdict(list)
    copies: Activity = defaultdict(list)
    for table, found in ((trace.kernels, work), (trace.opaque_replays, work), (trace.copies, copies)):
        start, end = table.start_ns, table.end_ns
        order = None if _grouped(table.stream) else np.argsort(table.stream, kind="stable")
        stream = table.stream if order is None else table.stream[order]
        edges = np.flatnonzero(np.diff(stream, prepend=-1, append=-1)) if len(stream) else []
        for low, high in zip(edges[:-1], edges[1:], strict=True):
            rows = slice(low, high) if order is None else order[low:high]
            part = (start[rows], end[rows])
            part = clip(*part, *window) if window else part
            key = trace.streams[stream[low]]
            if len(part[0]):
                found[key.process, key.device].append(part)
    return work, copies


def _grouped(stream: Ints) -> bool:
    return bool((stream[1:] >= stream[:-1]).all())


def _joined(parts: list[Intervals]) -> Intervals:
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, dtype=np.int64)
    return np.concatenate([empty, *(s for s, _ in parts)]), np.concatenate([empty, *(e for _, e in parts)])
