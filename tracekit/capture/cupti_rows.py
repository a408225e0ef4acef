"""Turns CUPTI activity records into rows of an nsys export. Knows the records' fields, and needs no CUPTI."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tracekit.capture.cupti_tables import SCHEMA_VERSION, Row, Strings

# CUpti_ActivityKind, and the numbers that nsys gives to event types and call classes
MEMCPY, MEMSET, DRIVER, RUNTIME, DEVICE, CONTEXT = 1, 2, 4, 5, 8, 9
CONCURRENT_KERNEL, MARKER, MEMCPY2, SYNCHRONIZATION, GRAPH_TRACE = 10, 12, 22, 38, 51
MARKER_INSTANT, MARKER_START, MARKER_END = 1, 2, 4
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75
RUNTIME_CLASS, DRIVER_CLASS = 0, 1
VIRTUAL_MACHINE = 1 << 48  # nsys numbers its first (virtual) machine 1
INVALID_TIME_NS = 0


@dataclass
class Collected:
    """Rows so far. `zero_ns` is subtracted from every time: nsys counts from the start of the session."""

    zero_ns: int
    call_name: Callable[[bool, int], str]
    strings: Strings = field(default_factory=Strings)
    kernels: list[Row] = field(default_factory=list)
    copies: list[Row] = field(default_factory=list)
    memsets: list[Row] = field(default_factory=list)
    replays: list[Row] = field(default_factory=list)
    waits: list[tuple[Any, ...]] = field(default_factory=list)
    calls: dict[bool, list[tuple[Any, ...]]] = field(default_factory=lambda: {True: [], False: []})
    gpus: list[tuple[Any, ...]] = field(default_factory=list)
    contexts: dict[int, int] = field(default_factory=dict)
    marks: list[tuple[Any, ...]] = field(default_factory=list)
    open_ranges: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    ranges: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, record: Any) -> None:
        """Keep one record; kinds that no table holds are passed over. The record is not used afterwards."""
        adder = _ADDERS.get(int(record.kind))
        if adder is not None:
            adder(self, record)

    def tables(self, level: str) -> dict[str, list[Row]]:
        """Everything as tables, with the metadata that says how it was recorded."""
        ranges = _range_rows(self)  # before StringIds: it may still add names
        return {
            "CUPTI_ACTIVITY_KIND_KERNEL": _by_start(self.kernels),
            "CUPTI_ACTIVITY_KIND_MEMCPY": _by_start(self.copies),
            "CUPTI_ACTIVITY_KIND_MEMSET": _by_start(self.memsets),
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _by_start(self.replays),
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [_with_device(row, self.contexts) for row in self.waits],
            "CUPTI_ACTIVITY_KIND_RUNTIME": _call_rows(self.calls),
            "NVTX_EVENTS": ranges,
            "StringIds": list(self.strings.rows()),
            "TARGET_INFO_GPU": sorted(set(self.gpus)),
            "TARGET_INFO_CUDA_DEVICE": [(row[0], row[0], os.getpid()) for row in sorted(set(self.gpus))],
            "TARGET_INFO_SESSION_START_TIME": [(self.zero_ns,)],
            "META_DATA_EXPORT": _export_metadata(),
            "META_DATA_CAPTURE": _capture_metadata(level),
        }

    def since_start(self, time_ns: int) -> int:
        """A CUPTI time on the session's clock; 0 (not collected) stays 0."""
        return time_ns - self.zero_ns if time_ns != INVALID_TIME_NS else 0


def _by_start(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[0])


def global_pid() -> int:
    """This process as nsys writes it: machine, process id, no thread."""
    return VIRTUAL_MACHINE | (os.getpid() & 0xFFFFFF) << 24


def global_tid(thread: int) -> int:
    """A thread of this process as nsys writes it."""
    return global_pid() | (thread & 0xFFFFFF)


def _on_gpu(into: Collected, record: Any) -> tuple[Any, ...]:
    return (
        into.since_start(record.start),
        into.since_start(record.end),
        record.device_id,
        record.context_id,
        None,
        record.stream_id,
        record.correlation_id,
        global_pid(),
    )


def _node_id(record: Any) -> int | None:
    return int(record.graph_node_id) or None


def _add_kernel(into: Collected, record: Any) -> None:
    mangled = record.name
    full = demangle(mangled)
    names = tuple(into.strings.id_of(name) for name in (full, short_name(full), mangled))
    shape = (record.grid_x, record.grid_y, record.grid_z, record.block_x, record.block_y, record.block_z)
    memory = (
        record.static_shared_memory,
        record.dynamic_shared_memory,
        record.local_memory_per_thread,
        record.local_memory_total,
    )
    row = (record.launch_type, record.registers_per_thread, *shape, *memory, record.grid_id, _node_id(record))
    into.kernels.append((*_on_gpu(into, record), *names, *row))


def _add_copy(into: Collected, record: Any) -> None:
    kinds = (record.copy_kind, record.src_kind, record.dst_kind)
    into.copies.append((*_on_gpu(into, record), record.bytes, *kinds, _node_id(record)))


def _add_memset(into: Collected, record: Any) -> None:
    row = (record.value, record.bytes, record.memory_kind, _node_id(record))
    into.memsets.append((*_on_gpu(into, record), *row))


def _add_replay(into: Collected, record: Any) -> None:
    into.replays.append((*_on_gpu(into, record), record.graph_id, record.graph_id))


def _add_wait(into: Collected, record: Any) -> None:
    times = (into.since_start(record.start), into.since_start(record.end))
    where = (record.context_id, None, record.stream_id, record.correlation_id, global_pid())
    into.waits.append((*times, *where, record.type, record.cuda_event_id))


def _with_device(wait: tuple[Any, ...], contexts: dict[int, int]) -> Row:
    # a wait names its context only; the device comes from the context's own record
    return (*wait[:2], contexts.get(wait[2], 0), *wait[2:])


def _add_call(into: Collected, record: Any) -> None:
    is_runtime = int(record.kind) == RUNTIME
    name = into.strings.id_of(into.call_name(is_runtime, record.cbid))
    into.calls[is_runtime].append(
        (
            into.since_start(record.start),
            into.since_start(record.end),
            RUNTIME_CLASS if is_runtime else DRIVER_CLASS,
            global_tid(record.thread_id),
            record.correlation_id,
            name,
            record.return_value,
        )
    )


def _call_rows(calls: dict[bool, list[tuple[Any, ...]]]) -> list[Row]:
    # a runtime call and the driver call inside it carry one correlation id: nsys keeps the outer one
    outer = {row[4] for row in calls[True]}
    return _by_start([*calls[True], *(row for row in calls[False] if row[4] not in outer)])


def _add_gpu(into: Collected, record: Any) -> None:
    into.gpus.append(
        (
            record.id,
            record.name,
            record.global_memory_bandwidth * 1000,  # CUPTI counts kilobytes a second, and kilohertz
            record.core_clock_rate * 1000,
            record.num_multiprocessors,
            record.l2cache_size,
            record.global_memory_size,
            record.compute_capability_major,
            record.compute_capability_minor,
        )
    )


def _add_context(into: Collected, record: Any) -> None:
    into.contexts[record.context_id] = record.device_id


def _add_marker(into: Collected, record: Any) -> None:
    thread = global_tid(record.object_id.pt.thread_id)
    time_ns = into.since_start(record.timestamp)
    flags = int(record.flags_)
    if flags & MARKER_START:
        into.open_ranges[record.id] = (time_ns, thread, record.name or "", record.domain or "")
    elif flags & MARKER_END and record.id in into.open_ranges:
        start_ns, first_thread, name, domain = into.open_ranges.pop(record.id)
        into.ranges.append((start_ns, time_ns, first_thread, thread, name, domain, record.id))
    elif flags & MARKER_INSTANT:
        into.marks.append((time_ns, thread, record.name or "", record.domain or ""))


def _range_rows(into: Collected) -> list[Row]:
    """NVTX_EVENTS: a row a domain (0, the default, has none), then marks, ranges, and ranges never closed."""
    closed = into.ranges
    never = [(*start[:1], None, start[1], None, *start[2:], None) for start in into.open_ranges.values()]
    marks = [(*mark[:1], None, mark[1], None, *mark[2:], None) for mark in into.marks]
    names = sorted({row[5] for row in (*closed, *never, *marks)} - {""})
    domains = {name: number for number, name in enumerate(names, start=1)}
    rows: list[tuple[Any, ...]] = [
        (0, None, NVTX_DOMAIN, None, name, global_tid(0), None, None, number)
        for name, number in domains.items()
    ]
    for kind, group in ((NVTX_MARK, marks), (None, [*closed, *never])):
        for start_ns, end_ns, thread, end_thread, name, domain, number in group:
            event = kind or (NVTX_START_END if end_thread not in (None, thread) else NVTX_PUSH_POP)
            other = end_thread if event == NVTX_START_END else None
            rows.append((start_ns, end_ns, event, number, name, thread, other, None, domains.get(domain, 0)))
    return _by_start(rows)


_ADDERS: dict[int, Callable[[Collected, Any], None]] = {
    CONCURRENT_KERNEL: _add_kernel,
    MEMCPY: _add_copy,
    MEMCPY2: _add_copy,
    MEMSET: _add_memset,
    GRAPH_TRACE: _add_replay,
    SYNCHRONIZATION: _add_wait,
    RUNTIME: _add_call,
    DRIVER: _add_call,
    DEVICE: _add_gpu,
    CONTEXT: _add_context,
    MARKER: _add_marker,
}


def _export_metadata() -> list[Row]:
    major, minor, micro = SCHEMA_VERSION.split(".")
    return [
        ("EXPORT_PRODUCT_NAME", "tracekit, by CUPTI"),
        ("EXPORT_SCHEMA_VERSION", SCHEMA_VERSION),
        ("EXPORT_SCHEMA_VERSION_MAJOR", major),
        ("EXPORT_SCHEMA_VERSION_MINOR", minor),
        ("EXPORT_SCHEMA_VERSION_MICRO", micro),
        ("EXPORT_PARAM_LAZY", "true"),
    ]


def _capture_metadata(level: str) -> list[Row]:
    return [
        ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", level.capitalize()),
    ]


@functools.cache
def demangle(name: str) -> str:
    """A C++ symbol's full name; the name itself where it is none, or where no libstdc++ is at hand."""
    if not name.startswith("_Z"):
        return name
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return name
    function.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = function(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not found:
        return name
    text = ctypes.string_at(found).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


@functools.cache
def short_name(full: str) -> str:
    """The function's own name: `void at::native::copy<float>(int)` is `copy`."""
    depth, kept = 0, []
    for character in full.replace("(anonymous namespace)", "_anonymous_"):
        depth -= character == ">"
        if depth == 0 and character == "(":
            break
        if depth == 0 and character != ">":
            kept.append("" if character == "<" else character)
        depth += character == "<"
    words = re.split(r"::|\s", "".join(kept).strip())
    return words[-1] or full
