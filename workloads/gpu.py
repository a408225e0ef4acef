"""The GPU as the workloads use it: what it is, kernels, launches with the PDL attribute, graphs, timing.

Arrays and streams are CuPy's; launches and graphs go through cuda-bindings, which knows launch attributes and
programmatic edges. Both share the device's primary context.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workloads.errors import WorkloadError
from workloads.nvrtc import compile_file

FIRST_PDL_MAJOR = 9  # compute capability 9.0, Hopper


@dataclass(frozen=True)
class Gpu:
    """The current device. `cuda_version` is what the driver supports, `13.0`."""

    name: str
    compute_major: int
    compute_minor: int
    multiprocessors: int
    l2_bytes: int
    cuda_version: str

    @property
    def architecture(self) -> str:
        return f"sm_{self.compute_major}{self.compute_minor}"

    @property
    def has_pdl(self) -> bool:
        return self.compute_major >= FIRST_PDL_MAJOR


def open_gpu() -> Gpu:
    """Make device 0 current and describe it. Raises WorkloadError without CuPy, a driver or a GPU."""
    cupy = import_cupy()
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            raise WorkloadError("no NVIDIA GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES")
        cupy.cuda.Device(0).use()
        cupy.cuda.runtime.free(0)  # creates the primary context, which the driver API then finds current
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        version = cupy.cuda.runtime.driverGetVersion()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise WorkloadError(
            f"no usable NVIDIA GPU ({error}): check nvidia-smi, or run `tracekit doctor`"
        ) from None
    return Gpu(
        name=properties["name"].decode(),
        compute_major=properties["major"],
        compute_minor=properties["minor"],
        multiprocessors=properties["multiProcessorCount"],
        l2_bytes=properties["l2CacheSize"],
        cuda_version=f"{version // 1000}.{version % 1000 // 10}",
    )


def import_cupy() -> Any:
    """CuPy, or a WorkloadError that says how to install it."""
    try:
        import cupy
    except ImportError:
        raise WorkloadError(
            "CuPy is not installed: pip install 'tracekit-gpu[gpu]' (or cupy-cuda13x)"
        ) from None
    return cupy


def import_driver() -> Any:
    """The CUDA driver API of cuda-bindings, or a WorkloadError that says how to install it."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise WorkloadError("cuda-bindings is not installed: pip install 'tracekit-gpu[gpu]'") from None
    return driver


def call(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call, which returns its error code first. Raises WorkloadError on an error."""
    if int(answer[0]) != 0:
        raise WorkloadError(f"the CUDA driver says {answer[0].name}")
    return answer[1] if len(answer) > 1 else None


@dataclass(frozen=True)
class Kernels:
    """The functions of one loaded .cu file; `module` keeps them alive."""

    module: Any
    functions: Mapping[str, Any]


def load_kernels(
    gpu: Gpu, file: str, names: Sequence[str], defines: Mapping[str, int] | None = None
) -> Kernels:
    """Compile a .cu file for this GPU and find its `extern "C"` kernels."""
    driver = import_driver()
    module = call(driver.cuModuleLoadData(compile_file(file, gpu.architecture, defines).cubin))
    functions = {name: call(driver.cuModuleGetFunction(module, name.encode())) for name in names}
    return Kernels(module, functions)


class Arguments:
    """Kernel arguments packed once: 8 bytes each (a kernel reads the low bytes), and their addresses."""

    def __init__(self, *values: int) -> None:
        self._values = np.array(values, dtype=np.uint64)
        self._addresses = self._values.ctypes.data + 8 * np.arange(len(values), dtype=np.uint64)

    @property
    def address(self) -> int:
        return self._addresses.ctypes.data


@dataclass(frozen=True)
class Launch:
    """One kernel launch, ready to be made or added to a graph."""

    function: Any
    grid: int
    block: int
    arguments: Arguments


def launch_config(launch: Launch, stream: Any, *, pdl: bool) -> Any:
    """The driver's launch configuration; with `pdl` the kernel may start before the previous one ends."""
    driver = import_driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block, 1, 1
    config.hStream = driver.CUstream(stream.ptr)
    if pdl:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [attribute]
        config.numAttrs = 1
    return config


def chain_launcher(chain: Sequence[Launch], stream: Any, *, pdl: bool) -> Callable[[], None]:
    """A function that launches the chain on the stream; all have the grid and block of the first."""
    launch_kernel = import_driver().cuLaunchKernelEx
    config = launch_config(chain[0], stream, pdl=pdl)
    prepared = [(launch.function, launch.arguments.address) for launch in chain]

    def enqueue() -> None:
        for function, arguments in prepared:
            (error,) = launch_kernel(config, function, arguments, 0)
            if error:
                raise WorkloadError(f"cuLaunchKernelEx says {error.name}")

    return enqueue


@dataclass(frozen=True)
class Graph:
    """An instantiated CUDA graph; `programmatic_edges` counts its PDL edges, None where that failed."""

    executable: Any
    programmatic_edges: int | None


def capture_graph(enqueue: Callable[[], None], stream: Any, kernels: int) -> Graph:
    """A graph of the `kernels` launches that `enqueue` makes; the PDL attribute makes programmatic edges."""
    driver = import_driver()
    handle = driver.CUstream(stream.ptr)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    call(driver.cuStreamBeginCapture(handle, mode))
    try:
        enqueue()
    finally:
        graph = call(driver.cuStreamEndCapture(handle))
    return _instantiate(graph, kernels)


def build_graph(chain: Sequence[Launch], *, pdl: bool) -> Graph:
    """The same graph by hand: a node a launch, and an edge a boundary, programmatic with `pdl`."""
    driver = import_driver()
    graph = call(driver.cuGraphCreate(0))
    nodes = [_add_node(graph, launch) for launch in chain]
    for before, after in itertools.pairwise(nodes):
        edges = [_programmatic_edge()] if pdl else None
        call(driver.cuGraphAddDependencies(graph, [before], [after], edges, 1))
    return _instantiate(graph, len(nodes))


def _add_node(graph: Any, launch: Launch) -> Any:
    driver = import_driver()
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func = launch.function
    node.gridDimX, node.gridDimY, node.gridDimZ = launch.grid, 1, 1
    node.blockDimX, node.blockDimY, node.blockDimZ = launch.block, 1, 1
    node.kernelParams = launch.arguments.address
    return call(driver.cuGraphAddKernelNode(graph, None, 0, node))


def _programmatic_edge() -> Any:
    driver = import_driver()
    edge = driver.CUgraphEdgeData()
    # the port that fires when every block of the earlier kernel has triggered or ended
    edge.from_port = driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    edge.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return edge


def _instantiate(graph: Any, kernels: int) -> Graph:
    driver = import_driver()
    programmatic = _count_programmatic_edges(graph, kernels)
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphDestroy(graph))
    return Graph(executable, programmatic)


def _count_programmatic_edges(graph: Any, at_most: int) -> int | None:
    driver = import_driver()
    # one call with room for every edge: asking for the count alone fails where edges carry data
    error, _, _, edges, _ = driver.cuGraphGetEdges(graph, at_most)
    if error:
        return None
    programmatic = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return sum(int(edge.type) == programmatic for edge in edges)


def graph_launcher(graph: Graph, stream: Any) -> Callable[[], None]:
    """A function that replays the graph on the stream."""
    launch_graph = import_driver().cuGraphLaunch
    handle = import_driver().CUstream(stream.ptr)

    def replay() -> None:
        (error,) = launch_graph(graph.executable, handle)
        if error:
            raise WorkloadError(f"cuGraphLaunch says {error.name}")

    return replay


def destroy_graph(graph: Graph) -> None:
    """Free the executable graph; its last replay must have finished."""
    call(import_driver().cuGraphExecDestroy(graph.executable))


def clock_mhz(gpu: Gpu, stream: Any, duration_ms: int) -> float:
    """Keep every multiprocessor busy for a while and return the SM clock that was seen, in MHz.

    It also takes the GPU out of its idle clocks, which nothing here ever sets.
    """
    cupy = import_cupy()
    kernels = load_kernels(gpu, "clocks.cu", ["spin"])
    seen = cupy.zeros(2, dtype=cupy.uint64)
    arguments = Arguments(duration_ms * 1_000_000, seen.data.ptr)
    spin = Launch(kernels.functions["spin"], gpu.multiprocessors, 128, arguments)
    chain_launcher([spin], stream, pdl=False)()
    stream.synchronize()
    cycles, elapsed_ns = (int(value) for value in seen.get())
    return 1000 * cycles / max(elapsed_ns, 1)
