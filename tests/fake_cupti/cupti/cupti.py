"""As much of cupti.cupti as the runner calls: on flush it delivers two kernels, launches and a range."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

BASE_NS = 1_700_000_000_000_000_000


class cuptiError(Exception):  # noqa: N801 - NVIDIA's name
    """An error of a call."""


class ActivityKind(enum.IntEnum):
    MEMCPY, MEMSET, DRIVER, RUNTIME, DEVICE, CONTEXT = 1, 2, 4, 5, 8, 9
    CONCURRENT_KERNEL, MARKER, MEMCPY2, SYNCHRONIZATION, GRAPH_TRACE = 10, 12, 22, 38, 51


ActivityThreadIdType = SimpleNamespace(SYSTEM=1)
CallbackDomain = SimpleNamespace(DRIVER_API=1, RUNTIME_API=2)
enabled: list[ActivityKind] = []
callbacks: list[Callable[[list[Any]], None]] = []


def get_timestamp() -> int:
    return BASE_NS


def set_thread_id_type(kind: int) -> None:
    return None


def activity_enable(kind: ActivityKind) -> None:
    if kind == ActivityKind.MEMCPY2:
        raise cuptiError("not supported")
    enabled.append(kind)


def activity_register_callbacks(requested: Callable[[], tuple[int, int]], completed: Any) -> None:
    assert requested()[0] > 0
    callbacks.append(completed)


def get_callback_name(domain: int, number: int) -> str:
    return {(1, 3): "cuLaunchKernelEx", (2, 4): "cudaGraphLaunch_v10000"}[domain, number]


def activity_flush_all(flag: int) -> None:
    callbacks[0]([record for record in _records() if record.kind in enabled])


def _records() -> list[SimpleNamespace]:
    thread = SimpleNamespace(pt=SimpleNamespace(thread_id=os.getpid()))
    marker = {"kind": ActivityKind.MARKER, "id": 1, "object_id": thread}
    graph = {"device_id": 0, "context_id": 1, "stream_id": 7, "correlation_id": 12, "graph_id": 2}
    return [
        SimpleNamespace(**marker, flags_=2, timestamp=BASE_NS + 1_000, name="graph", domain="tracekit"),
        _call(ActivityKind.RUNTIME, 4, 12, 1_500),
        _call(ActivityKind.DRIVER, 3, 12, 1_600),  # nested in the runtime call above: one id
        _call(ActivityKind.DRIVER, 3, 13, 4_000),
        _kernel(12, 2_000, 3_000, (5 << 32) + 1),
        _kernel(13, 5_000, 6_000, 0),
        SimpleNamespace(kind=ActivityKind.GRAPH_TRACE, start=BASE_NS + 2_000, end=BASE_NS + 3_000, **graph),
        SimpleNamespace(**marker, flags_=4, timestamp=BASE_NS + 9_000, name=None, domain=None),
    ]


def _call(kind: ActivityKind, number: int, correlation: int, start_ns: int) -> SimpleNamespace:
    return SimpleNamespace(
        kind=kind,
        cbid=number,
        correlation_id=correlation,
        start=BASE_NS + start_ns,
        end=BASE_NS + start_ns + 100,
        thread_id=os.getpid(),
        return_value=0,
    )


def _kernel(correlation: int, start_ns: int, end_ns: int, node: int) -> SimpleNamespace:
    sizes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread")
    memory = (
        "static_shared_memory",
        "dynamic_shared_memory",
        "local_memory_per_thread",
        "local_memory_total",
    )
    return SimpleNamespace(
        kind=ActivityKind.CONCURRENT_KERNEL,
        name="_Z3fooi",
        start=BASE_NS + start_ns,
        end=BASE_NS + end_ns,
        device_id=0,
        context_id=1,
        stream_id=7,
        correlation_id=correlation,
        graph_node_id=node,
        launch_type=0,
        grid_id=1,
        **dict.fromkeys((*sizes, *memory), 1),
    )
