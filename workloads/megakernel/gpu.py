"""The megakernel on the GPU: built, launched, watched."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads import gpu as gpus
from workloads.errors import WorkloadError
from workloads.gpu import Arguments, Gpu, Launch
from workloads.megakernel.checker import Grid
from workloads.megakernel.packing import Packed
from workloads.megakernel.tasks import BLOCK_WORDS, RECORD_WORDS
from workloads.pdl_chain import Numbers

FILE = "megakernel/megakernel.cu"
KERNEL = "megakernel"
LOCKSTEP_FILE = "megakernel/lockstep.cu"
LOCKSTEP_KERNEL = "lockstep"
REPORT_WORDS = 6  # stopped, block, instruction, counter, wanted, seen
QUEUE_HEADS = 1024  # a run claims from its own; cleared together when they are used up
SHARED_BYTES = 48 * 1024
WORD = np.dtype(np.uint32).itemsize
LINE_BYTES = 128
JOB = (  # the fields of megakernel.cu's `struct Job`, 8 bytes each
    "program",
    "dependencies",
    "instructions",
    "counters",
    "queue",
    "epoch",
    "start",
    "buffer_0",
    "buffer_1",
    "weights",
    "biases",
    "size",
    "report",
    "timeout_ns",
    "records",
    "capacity",
    "blocks",
    "chaos_seed",
    "chaos_ns",
    "layers",
    "rotate",
    "pairs",
    "withheld",
)
NOTHING_WITHHELD = 2**64 - 1
MOST_BLOCKS_A_CLUSTER = 16  # more than 8 is not portable: Hopper allows it when asked


class Prefetch(StrEnum):
    """What is on its way before a wait ends: nothing, the next instruction, or its weights too."""

    NONE = "none"
    INSTRUCTION = "instruction"
    WEIGHTS = "weights"


class Schedule(StrEnum):
    """Who runs what: worker w takes w, w + workers, ..., or each claims the next number from a queue."""

    STRIDE = "stride"
    QUEUE = "queue"


class Poll(StrEnum):
    """Who looks at the counter: one warp, then a barrier; every warp; one warp with two loads in flight."""

    ONE = "one"
    EVERY = "every"
    OVERLAPPED = "overlapped"


class Signal(StrEnum):
    """How a layer tells the next one. `counter` runs the table; the others are lockstep.cu's, without one."""

    COUNTER = "counter"
    LEAN = "lean"
    WARPS = "warps"
    FLAGS = "flags"
    DATA = "data"
    CLUSTER = "cluster"
    PUSH = "push"

    @property
    def in_cluster(self) -> bool:
        """Whether all blocks have to be one cluster."""
        return self in (Signal.CLUSTER, Signal.PUSH)


LOCKSTEP_CODES = {signal: code for code, signal in enumerate(list(Signal)[1:])}
WAITED_FOR = {Signal.FLAGS: "block", Signal.DATA: "element", Signal.PUSH: "the bytes of layer"}
PREFETCH_CODES = {Prefetch.NONE: 0, Prefetch.INSTRUCTION: 1, Prefetch.WEIGHTS: 2}
POLL_CODES = {Poll.ONE: 0, Poll.EVERY: 1, Poll.OVERLAPPED: 2}


@dataclass(frozen=True)
class Build:
    """What is compiled into the kernel: `block` threads that take `vector` floats each."""

    block: int = 256
    vector: int = 1
    prefetch: Prefetch = Prefetch.WEIGHTS
    schedule: Schedule = Schedule.STRIDE
    poll: Poll = Poll.ONE
    counter_bytes: int = LINE_BYTES
    signal: Signal = Signal.COUNTER
    timeline: bool = False
    chaos: bool = False

    @property
    def source(self) -> tuple[str, str]:
        """The file, and the kernel in it."""
        return (FILE, KERNEL) if self.signal is Signal.COUNTER else (LOCKSTEP_FILE, LOCKSTEP_KERNEL)

    @property
    def defines(self) -> dict[str, int]:
        """The -D of that file."""
        return {
            "BLOCK": self.block,
            "VECTOR": self.vector,
            **self._own_defines(),
            "COUNTER_STRIDE": self.counter_bytes // WORD,
            "TIMELINE": int(self.timeline),
            "CHAOS": int(self.chaos),
        }

    def _own_defines(self) -> dict[str, int]:
        if self.signal is not Signal.COUNTER:
            ahead = int(self.prefetch is Prefetch.WEIGHTS)
            return {"SIGNAL": LOCKSTEP_CODES[self.signal], "AHEAD": ahead}
        return {
            "PREFETCH": PREFETCH_CODES[self.prefetch],
            "QUEUE": int(self.schedule is Schedule.QUEUE),
            "POLL": POLL_CODES[self.poll],
        }

    @property
    def shared_bytes(self) -> int:
        """The most that the kernel keeps in shared memory: four stages of weights, two layers' values."""
        if self.signal is Signal.COUNTER:
            return 0
        floats = 4 * self.block * self.vector
        stages = 4 * 2 * floats if self.prefetch is Prefetch.WEIGHTS else 0
        return stages + (2 * floats + 1024 if self.signal.in_cluster else 0)


@dataclass(frozen=True)
class Limits:
    """`timeout_ns` ends a wait, `records` are kept a block, `chaos_ns` is the longest random delay."""

    timeout_ns: int = 1_000_000_000
    records: int = 4096
    chaos_ns: int = 2000


class StoppedError(WorkloadError):
    """The watchdog ended a wait; the message names block, instruction and counter."""


def check_build(build: Build, elements: int) -> None:
    """Raise WorkloadError for a block that cannot run instructions of that many elements."""
    if build.vector not in (1, 2, 4):
        raise WorkloadError(f"--vector is {build.vector}: a thread takes 1, 2 or 4 floats")
    if build.block * build.vector != elements:
        raise WorkloadError(
            f"{elements} floats an instruction do not fit {build.vector} a thread: choose --blocks and"
            " --vector so that --size / --blocks / --vector is a whole number"
        )
    if build.block % 32 or not 32 <= build.block <= 1024:
        raise WorkloadError(
            f"an instruction would take {build.block} threads: choose --blocks and --vector so that it is a"
            " multiple of 32, up to 1024"
        )
    if build.shared_bytes > SHARED_BYTES:
        raise WorkloadError(
            f"four stages of weights take {build.shared_bytes} bytes of shared memory, there are"
            f" {SHARED_BYTES}: choose more --blocks"
        )
    if build.counter_bytes < WORD or build.counter_bytes % WORD:
        raise WorkloadError(f"--counter-bytes is {build.counter_bytes}: choose a multiple of {WORD}")


def check_lockstep(build: Build, blocks: int, workers: int) -> None:
    """Raise WorkloadError where a kernel without a table would do something else than the table says."""
    signal = build.signal
    if signal is Signal.COUNTER:
        return
    if workers != blocks:
        raise WorkloadError(
            f"--signal {signal}: a block keeps its place in all layers, use --workers {blocks}"
        )
    if build.prefetch is Prefetch.INSTRUCTION or build.schedule is not Schedule.STRIDE:
        raise WorkloadError(f"--signal {signal}: there are no instructions to fetch, claim or load ahead")
    if signal.in_cluster and blocks > MOST_BLOCKS_A_CLUSTER:
        most = f"choose at most {MOST_BLOCKS_A_CLUSTER} --blocks"
        raise WorkloadError(f"--signal {signal}: {blocks} blocks are no cluster, {most}")


class Megakernel:
    """A loaded megakernel with its table and data; `launch` enqueues one run of the whole table."""

    def __init__(self, gpu: Gpu, build: Build, limits: Limits, workers: int) -> None:
        self.build, self.limits, self.workers = build, limits, workers
        file, name = build.source
        self._kernels = gpus.load_kernels(gpu, file, [name], build.defines)
        self._function = self._kernels.functions[name]
        if build.signal.in_cluster:
            self._allow_large_clusters()
        self._multiprocessors = gpu.multiprocessors
        self._epoch = 0
        self._config: tuple[int, Any] | None = None  # of the stream it was made for

    def _allow_large_clusters(self) -> None:
        driver = gpus.import_driver()
        allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        gpus.call(driver.cuFuncSetAttribute(self._function, allowed, 1))

    @property
    def grid(self) -> Grid:
        """The workers, and how many of them can be resident: what the checker asks for."""
        driver = gpus.import_driver()
        if self.build.signal.in_cluster:
            config = self._configure(SimpleNamespace(ptr=0))
            clusters = gpus.call(driver.cuOccupancyMaxActiveClusters(self._function, config))
            return Grid(self.workers, clusters * self.workers)
        blocks = gpus.call(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, self.build.block, 0)
        )
        return Grid(self.workers, blocks * self._multiprocessors)

    def load(self, packed: Packed, counters: int, numbers: Numbers, rotate: int = 0) -> None:
        """Copy the table and the chain's numbers to the GPU, and clear the counters.

        `rotate` (in blocks) is what the table's operands already say: for kernels that read no table.
        """
        cupy = gpus.import_cupy()
        self._layers, self._rotate, self.withheld = len(numbers.weights), rotate, NOTHING_WITHHELD
        self._instructions = len(packed.program) - 1
        self._size = len(numbers.start)
        self._program, self._dependencies, self._start, self._weights, self._biases = (
            cupy.asarray(a)
            for a in (packed.program, packed.dependencies, numbers.start, numbers.weights, numbers.biases)
        )
        self._buffers = tuple(cupy.empty_like(self._start) for _ in range(2))
        words = max(counters, self._layers, self.workers)  # a layer's, or a block's
        self._counter_words = words * self.build.counter_bytes // WORD
        self._capacity = self.limits.records if self.build.timeline else 0
        self._records = cupy.zeros(max(1, self.workers * self._capacity * RECORD_WORDS), dtype=np.uint64)
        self._blocks = cupy.zeros(self.workers * BLOCK_WORDS, dtype=np.uint64)
        self._clear()

    def _clear(self) -> None:
        """Counters, queue and report as before the first run."""
        cupy = gpus.import_cupy()
        self._counters = cupy.zeros(self._counter_words, dtype=np.uint32)
        self._queue = cupy.zeros(QUEUE_HEADS, dtype=np.uint32)
        self._report = cupy.zeros(REPORT_WORDS, dtype=np.int32)
        self._pairs = cupy.zeros(2 * self._size, dtype=np.uint64)  # epochs begin at 1
        self._epoch = 0
        fields = self._fields()
        self._job = np.array([fields[name] for name in JOB], dtype=np.uint64)
        self._parameters = np.array([self._job.ctypes.data], dtype=np.uint64)
        cupy.cuda.Device().synchronize()  # uploads and clearing ran on another stream

    def launch(self, stream: Any, chaos_seed: int = 0) -> None:
        """Enqueue one run. It fails where the grid cannot all be resident: it is cooperative, or a cluster.

        The instruction `withheld`, where a test sets one, never signals (only without a table).
        """
        head = self._epoch % QUEUE_HEADS
        if head == 0:
            self._queue.data.memset_async(0, self._queue.nbytes, stream)
        # the driver copies the job when it is called, so one array serves all launches
        self._job[JOB.index("queue")] = self._queue.data.ptr + WORD * head
        self._job[JOB.index("epoch")] = self._epoch
        self._job[JOB.index("chaos_seed")] = chaos_seed
        self._job[JOB.index("withheld")] = self.withheld
        if self._config is None or self._config[0] != stream.ptr:
            self._config = (stream.ptr, self._configure(stream))
        launch_kernel = gpus.import_driver().cuLaunchKernelEx
        gpus.call(launch_kernel(self._config[1], self._function, self._parameters.ctypes.data, 0))
        self._epoch += 1

    def _configure(self, stream: Any) -> Any:
        driver = gpus.import_driver()
        launch = Launch(self._function, self.workers, self.build.block, Arguments())
        config = gpus.launch_config(launch, stream, pdl=False)
        attribute = driver.CUlaunchAttribute()
        if self.build.signal.in_cluster:
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dimensions = attribute.value.clusterDim
            dimensions.x, dimensions.y, dimensions.z = self.workers, 1, 1
        else:
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
        config.attrs = [attribute]
        config.numAttrs = 1
        return config

    def _fields(self) -> dict[str, int]:
        """`struct Job`; what changes from launch to launch is 0."""
        arrays = {
            "program": self._program,
            "dependencies": self._dependencies,
            "counters": self._counters,
            "start": self._start,
            "buffer_0": self._buffers[0],
            "buffer_1": self._buffers[1],
            "weights": self._weights,
            "biases": self._biases,
            "report": self._report,
            "pairs": self._pairs,
            "records": self._records,
            "blocks": self._blocks,
        }
        values = {
            "instructions": self._instructions,
            "size": self._size,
            "layers": self._layers,
            "rotate": self._rotate,
            "timeout_ns": self.limits.timeout_ns,
            "capacity": self._capacity,
            "chaos_ns": max(self.limits.chaos_ns, 1),
        }
        changing = dict.fromkeys(("queue", "epoch", "chaos_seed", "withheld"), 0)
        return {name: array.data.ptr for name, array in arrays.items()} | values | changing

    def poison(self, stream: Any) -> None:
        """Fill both buffers with NaN and forget all records: what was not written shows."""
        for buffer in (*self._buffers, self._pairs):
            buffer.data.memset_async(0xFF, buffer.nbytes, stream)
        self._records.data.memset_async(0, self._records.nbytes, stream)

    def output(self, layers: int, stream: Any) -> NDArray[np.float32]:
        """The last layer's output. Raises StoppedError where the watchdog ended the run."""
        stream.synchronize()
        self.raise_if_stopped()
        values: NDArray[np.float32] = self._buffers[(layers - 1) % 2].get()
        return values

    def raise_if_stopped(self) -> None:
        """Raise StoppedError where the watchdog ended a run; the runs must have finished.

        The counters are then cleared, so that the next run starts anew.
        """
        stopped, block, instruction, counter, wanted, seen = (int(word) for word in self._report.get())
        if not stopped:
            return
        self._clear()
        waited_for = WAITED_FOR.get(self.build.signal, "counter")
        raise StoppedError(
            f"the watchdog stopped the kernel: block {block} waited longer than"
            f" {self.limits.timeout_ns / 1e6:g} ms at instruction {instruction} for {waited_for} {counter} to"
            f" reach {wanted}, it stands at {seen}; check the table, or raise --timeout-ms"
        )

    def records(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Records (workers, capacity, words) and blocks (workers, words) of the runs since `poison`."""
        shape = (self.workers, self._capacity, RECORD_WORDS)
        return self._records.get().reshape(shape), self._blocks.get().reshape(self.workers, BLOCK_WORDS)
