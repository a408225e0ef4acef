"""A GPU in NumPy: CuPy's arrays on host memory, and a driver that runs a workload's kernels when launched.

It takes the arguments out of memory as a GPU does, so that packing, chaining, capture and edges are really
tested. Types (launch configurations, edges) are cuda-bindings' own; only the calls are replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real_driver

from workloads import gpu as gpus
from workloads.nvrtc import Compiled

SMS = 4


class FakeArray:
    """The part of cupy.ndarray that the workloads use."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = np.ascontiguousarray(array)
        self.nbytes, self.strides = self.array.nbytes, self.array.strides
        self.data = SimpleNamespace(ptr=self.array.ctypes.data, memset_async=self._memset)

    def _memset(self, value: int, count: int, stream: Any) -> None:
        ctypes.memset(self.array.ctypes.data, value, count)

    def __getitem__(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(data=SimpleNamespace(ptr=self.array[index].ctypes.data))

    def get(self) -> np.ndarray[Any, Any]:
        return self.array.copy()


@dataclass
class Launched:
    """One kernel launch as the driver saw it."""

    function: int
    grid: int
    block: int
    arguments: int
    pdl: bool
    stamped: bool = False


@dataclass
class FakeDriver:
    """Delegates types to cuda-bindings, and keeps what was launched."""

    breaks_wait: bool = False
    clock_ns: int = 1_000_000
    functions: dict[int, Callable[[Launched], None]] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    capturing: list[Launched] | None = None
    graphs: list[list[Launched]] = field(default_factory=list)
    edges: dict[int, list[int]] = field(default_factory=dict)
    launches: list[Launched] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_driver, name)

    def cuModuleLoadData(self, image: bytes) -> tuple[int, str]:  # noqa: N802
        return 0, image.decode()

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, Any]:  # noqa: N802
        number = len(self.functions) + 1
        kernel = KERNELS[module.partition(":")[0], name.decode()]
        stamped = "'STAMPS': 1" in module
        self.functions[number] = lambda launched: kernel(self, replace(launched, stamped=stamped))
        return 0, real_driver.CUfunction(number)

    def cuLaunchKernelEx(self, config: Any, function: Any, arguments: int, extra: int) -> tuple[int]:  # noqa: N802
        pdl = config.numAttrs == 1 and config.attrs[0].value.programmaticStreamSerializationAllowed == 1
        self._take(Launched(int(function), config.gridDimX, config.blockDimX, arguments, pdl))
        return (0,)

    def _take(self, launched: Launched) -> None:
        if self.capturing is not None:
            self.capturing.append(launched)
        else:
            self._run([launched])

    def _run(self, launches: Iterable[Launched]) -> None:
        for launched in launches:
            self.launches.append(launched)
            self.functions[launched.function](launched)

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[int]:  # noqa: N802
        self.capturing = []
        return (0,)

    def cuStreamEndCapture(self, stream: Any) -> tuple[int, int]:  # noqa: N802
        captured, self.capturing = self.capturing or [], None
        self.graphs.append(captured)
        self.edges[len(self.graphs) - 1] = [int(launched.pdl) for launched in captured[1:]]
        return 0, len(self.graphs) - 1

    def cuGraphCreate(self, flags: int) -> tuple[int, int]:  # noqa: N802
        self.graphs.append([])
        self.edges[len(self.graphs) - 1] = []
        return 0, len(self.graphs) - 1

    def cuGraphAddKernelNode(self, graph: int, depends: Any, count: int, node: Any) -> tuple[int, int]:  # noqa: N802
        nodes = self.graphs[graph]
        nodes.append(Launched(int(node.func), node.gridDimX, node.blockDimX, node.kernelParams, False))
        return 0, len(nodes) - 1

    def cuGraphAddDependencies(  # noqa: N802
        self, graph: int, before: list[int], after: list[int], edges: Any, count: int
    ) -> tuple[int]:
        assert after[0] == before[0] + 1
        self.edges[graph].append(int(edges[0].type) if edges else 0)
        assert not edges or edges[0].from_port == 1
        return (0,)

    def cuGraphGetEdges(self, graph: int, at_most: int) -> tuple[Any, ...]:  # noqa: N802
        edges = [SimpleNamespace(type=kind) for kind in self.edges[graph]]
        return 0, [], [], edges, len(edges)

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, graph

    def cuGraphDestroy(self, graph: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuGraphExecDestroy(self, graph: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuGraphLaunch(self, graph: int, stream: Any) -> tuple[int]:  # noqa: N802
        self._run(self.graphs[graph])
        return (0,)


def argument(launched: Launched, index: int) -> int:
    """The value of a kernel argument: the launch holds the addresses of its values."""
    addresses = ctypes.cast(launched.arguments, ctypes.POINTER(ctypes.c_uint64))
    return int(ctypes.cast(addresses[index], ctypes.POINTER(ctypes.c_uint64))[0])


def memory(address: int, count: int, kind: Any) -> np.ndarray[Any, Any]:
    """`count` values at an address."""
    return np.frombuffer(
        (ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), dtype=kind
    )


def _chain_layer(driver: FakeDriver, launched: Launched) -> None:
    count = argument(launched, 4)
    assert launched.grid * launched.block >= count
    source, target, weight, bias = (memory(argument(launched, i), count, np.float32) for i in range(4))
    exact = np.maximum(source, 0).astype(np.float64) * weight + bias
    target[:] = exact.astype(np.float32)
    if driver.breaks_wait:
        target[7] = 99.0


def _sums(weights: int, vectors: int, launched: Launched) -> np.ndarray[Any, Any]:
    words = memory(weights, 4 * vectors, np.uint32).reshape(-1, 4).astype(np.uint64).sum(axis=1)
    threads = np.zeros(launched.grid * launched.block, dtype=np.uint64)
    np.add.at(threads, np.arange(vectors) % len(threads), words)
    sums: np.ndarray[Any, Any] = threads.reshape(-1, 32).sum(axis=1)
    return sums


def _sweep_layer(driver: FakeDriver, launched: Launched) -> None:
    source, target, weights, vectors, stamps = (argument(launched, i) for i in range(5))
    warps = launched.grid * launched.block // 32
    before = np.roll(memory(source, warps, np.uint32).astype(np.uint64), -(launched.block // 32))
    memory(target, warps, np.uint32)[:] = ((3 * before + _sums(weights, vectors, launched)) % 2**32).astype(
        np.uint32
    )
    driver.clock_ns += 704
    if launched.stamped:
        row = memory(stamps, 3 * launched.grid, np.uint64).reshape(-1, 3)
        row[:] = [driver.clock_ns, driver.clock_ns + 64, driver.clock_ns + 320]
        driver.clock_ns += 320


def _read_only(driver: FakeDriver, launched: Launched) -> None:
    target, weights, vectors = (argument(launched, i) for i in range(3))
    sums = _sums(weights, vectors, launched) % 2**32
    memory(target, len(sums), np.uint32)[:] = sums.astype(np.uint32)


def _fill(driver: FakeDriver, launched: Launched) -> None:
    weights, vectors, multiplier = (argument(launched, i) for i in range(3))
    index = np.arange(4 * vectors, dtype=np.uint64)
    memory(weights, 4 * vectors, np.uint32)[:] = ((index * np.uint64(multiplier) + 1) % 2**32).astype(
        np.uint32
    )


def _spin(driver: FakeDriver, launched: Launched) -> None:
    duration_ns = argument(launched, 0)
    memory(argument(launched, 1), 2, np.uint64)[:] = [duration_ns * 1980 // 1000, duration_ns]


KERNELS: dict[tuple[str, str], Callable[[FakeDriver, Launched], None]] = {
    ("pdl_chain.cu", "layer"): _chain_layer,
    ("boundary_sweep.cu", "layer"): _sweep_layer,
    ("boundary_sweep.cu", "read_only"): _read_only,
    ("boundary_sweep.cu", "fill"): _fill,
    ("clocks.cu", "spin"): _spin,
}


class FakeCudaError(Exception):
    """CuPy's CUDARuntimeError."""


def fake_cupy(compute_major: int) -> SimpleNamespace:
    """CuPy as the workloads use it."""

    def alloc(size: int) -> SimpleNamespace:
        block = np.zeros(size, dtype=np.uint8)
        return SimpleNamespace(ptr=block.ctypes.data, block=block)

    properties = {"name": b"NVIDIA Fake", "major": compute_major, "minor": 0}
    properties |= {"multiProcessorCount": SMS, "l2CacheSize": 1 << 16}
    runtime = SimpleNamespace(
        CUDARuntimeError=FakeCudaError,
        getDeviceCount=lambda: 1,
        free=lambda pointer: None,
        getDeviceProperties=lambda device: properties,
        driverGetVersion=lambda: 13000,
        memGetInfo=lambda: (1 << 23, 1 << 24),
        memcpyDeviceToDevice=3,
        memcpyAsync=lambda target, source, size, kind, stream: ctypes.memmove(target, source, size),
    )
    stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    device = SimpleNamespace(use=lambda: None, synchronize=lambda: None)
    cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda number=0: device,
        Stream=lambda non_blocking: stream,
        Event=lambda: event,
        get_elapsed_time=lambda before, after: 1.5,
        alloc=alloc,
    )
    return SimpleNamespace(
        cuda=cuda,
        zeros=lambda shape, dtype: FakeArray(np.zeros(shape, dtype=dtype)),
        asarray=FakeArray,
        empty_like=lambda array: FakeArray(np.empty_like(array.array)),
        uint32=np.uint32,
        uint64=np.uint64,
    )


def install(monkeypatch: pytest.MonkeyPatch, *, compute_major: int = 9) -> FakeDriver:
    """Put the fake in the place of CuPy, the driver and the compiler."""
    driver = FakeDriver()
    cupy = fake_cupy(compute_major)
    monkeypatch.setattr(gpus, "import_cupy", lambda: cupy)
    monkeypatch.setattr("workloads.phases.import_cupy", lambda: cupy)
    monkeypatch.setattr(gpus, "import_driver", lambda: driver)

    def compiled(name: str, architecture: str, defines: dict[str, int] | None = None) -> Compiled:
        return Compiled("", f"{name}:{defines or {}}".encode())

    monkeypatch.setattr(gpus, "compile_file", compiled)
    return driver
