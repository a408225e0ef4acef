"""The chain with 64 KiB to 256 MiB of weights a layer: boundary cost against the work around it.

Each size runs eager and as a graph, with and without PDL, and again with %globaltimer stamps in the kernels.
The weights of a pass are larger than the L2, so that every layer reads memory, as a decode step does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from workloads import gpu as gpus
from workloads.checking import require_close
from workloads.errors import WorkloadError, exit_on_error
from workloads.gpu import Arguments, Gpu, Kernels, Launch
from workloads.pdl_chain import print_pdl_note, require_sane
from workloads.phases import MODES, Plan, Timing, phase, time_phase
from workloads.result import Result, Stamps, write_result

SHOWS = "layers of 64 KiB to 256 MiB of weights: boundary cost and device gap against the work around them"
TRACED_ARGUMENTS = ("--repeats", "1")

KIB = 1024
SMALLEST_BYTES = 64 * KIB
LARGEST_BYTES = 256 * KIB * KIB
POOL_BYTES = 4 * KIB**3  # the weights of every size lie in one allocation
MULTIPLIER = 2_654_435_761  # odd, so that the pattern has the period of the address space
VECTOR_BYTES = 16
WORDS = np.uint64(2**32)
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Options:
    """`layers` 0: as many as make a pass four times the L2, 50 to 2,048, fewer where memory is the limit."""

    smallest_bytes: int = SMALLEST_BYTES
    largest_bytes: int = LARGEST_BYTES
    layers: int = 0
    passes: int = 5
    repeats: int = 5
    block: int = 512
    blocks_per_sm: int = 32
    stamps: bool = True
    eager: bool = True


@dataclass(frozen=True)
class Shape:
    """How one layer is spread: `grid` blocks of `block` threads read `vectors` values of 16 bytes."""

    layer_bytes: int
    layers: int
    grid: int
    block: int

    @property
    def vectors(self) -> int:
        return self.layer_bytes // VECTOR_BYTES

    @property
    def warps(self) -> int:
        return self.grid * self.block // 32


@dataclass(frozen=True)
class Bench:
    """What every size shares: the GPU, its stream, the weights' pool, the kernels without and with stamps."""

    gpu: Gpu
    stream: Any
    pool: Any
    pool_bytes: int
    plain: Kernels
    stamped: Kernels


@dataclass(frozen=True)
class Chain:
    """One size on the GPU. `stamps` is a row a layer, three values a block; without stamps it is one word."""

    shape: Shape
    launches: tuple[Launch, ...]
    start: Any
    buffers: tuple[Any, Any]
    stamps: Any

    @property
    def output(self) -> Any:
        return self.buffers[len(self.launches) % 2]


def run(options: Options) -> Result:
    """Measure the bandwidths, then every size in every mode; each output is checked against NumPy."""
    bench = _open_bench(options)
    facts = _measure_bandwidths(bench, options)
    timings: list[Timing] = []
    stamps: list[Stamps] = []
    for layer_bytes in sizes(options):
        shape = choose_shape(bench.gpu, options, layer_bytes, bench.pool_bytes)
        expected = expected_output(shape)
        for mode, stamped in _cases(options):
            timing, seen = _run_case(bench, shape, mode, stamped, options, expected)
            timings.append(timing)
            stamps += [seen] if seen else []
        print(size_line(shape, timings, facts["read_bytes_per_s"]))
        facts["share_of_read"][size_name(layer_bytes)] = _share_of_read(
            shape, timings, facts["read_bytes_per_s"]
        )
    facts["sm_clock_mhz"].append(gpus.clock_mhz(bench.gpu, bench.stream, 5))
    return Result(
        "boundary_sweep", dataclasses.asdict(options), bench.gpu, tuple(timings), tuple(stamps), facts
    )


def check(where: str, got: Words, expected: Words) -> None:
    """Raise WrongResultError where a word differs: the arithmetic is exact."""
    require_close(where, got, expected)


def sizes(options: Options) -> list[int]:
    """The powers of two from the smallest to the largest size."""
    count = (options.largest_bytes // options.smallest_bytes).bit_length()
    return [options.smallest_bytes << step for step in range(count)]


def choose_shape(gpu: Gpu, options: Options, layer_bytes: int, pool_bytes: int) -> Shape:
    """One load a thread while that leaves multiprocessors idle, four once the grid is full, in powers of two.

    Powers of two divide the sizes, so that no thread is left with a rest that it loads one by one.
    """
    vectors = layer_bytes // VECTOR_BYTES
    block = options.block if layer_bytes > 2 * KIB * KIB else min(options.block, 256)
    most = _power_of_two_below(gpu.multiprocessors * options.blocks_per_sm)
    per_thread = 4 if vectors >= 4 * block * gpu.multiprocessors else 1
    grid = max(1, min(most, vectors // (block * per_thread)))
    layers = options.layers or max(50, min(2048, -(-4 * gpu.l2_bytes // layer_bytes)))
    return Shape(layer_bytes, max(1, min(layers, pool_bytes // layer_bytes)), grid, block)


def _power_of_two_below(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


def expected_output(shape: Shape) -> Words:
    """The chain in NumPy, modulo 2^32: out[w] = 3 x in[w + one block's warps] + sum of warp w's weights."""
    counts, sums = _first_layer_sums(shape)
    state = np.zeros(shape.warps, dtype=np.uint64)
    for layer in range(shape.layers):
        first_word = np.uint64(layer * shape.layer_bytes // 4 * MULTIPLIER % 2**32)
        state = (
            np.uint64(3) * np.roll(state, -(shape.block // 32)) + sums + np.uint64(4) * first_word * counts
        ) % WORDS
    return state


def _first_layer_sums(shape: Shape) -> tuple[Words, Words]:
    """A warp's number of vectors, and its sum in the first layer: an arithmetic series a thread."""
    threads = shape.grid * shape.block
    thread = np.arange(threads, dtype=np.uint64)
    step, one = np.uint64(threads), np.uint64(1)
    count = (np.uint64(shape.vectors) - np.minimum(thread, np.uint64(shape.vectors)) + step - one) // step
    pairs = count * (count - np.minimum(count, one)) // np.uint64(2)
    # word j is MULTIPLIER x j + 1; vector v holds j = 4v to 4v + 3; a thread's k-th is v = thread + k x step
    index_sum = count * (np.uint64(16) * thread + np.uint64(6)) + np.uint64(16) * step * pairs
    total = (index_sum % WORDS) * np.uint64(MULTIPLIER) + np.uint64(4) * count
    return (count.reshape(-1, 32).sum(axis=1), (total % WORDS).reshape(-1, 32).sum(axis=1) % WORDS)


def _cases(options: Options) -> Iterator[tuple[str, bool]]:
    for mode in MODES:
        if mode.startswith("graph") or options.eager:
            yield mode, False
            # the stamps of a host-bound chain would show the host
            if options.stamps and mode.startswith("graph"):
                yield mode, True


def _open_bench(options: Options) -> Bench:
    gpu = gpus.open_gpu()
    print_pdl_note(gpu)
    cupy = gpus.import_cupy()
    pool_bytes = _pool_bytes(cupy, options)
    pool = cupy.cuda.alloc(pool_bytes)
    names = ["layer", "read_only", "fill"]
    kernels = [gpus.load_kernels(gpu, "boundary_sweep.cu", names, {"STAMPS": on}) for on in (0, 1)]
    bench = Bench(gpu, cupy.cuda.Stream(non_blocking=True), pool, pool_bytes, *kernels)
    with phase("setup"):
        arguments = Arguments(pool.ptr, pool_bytes // VECTOR_BYTES, MULTIPLIER)
        fill = Launch(kernels[0].functions["fill"], gpu.multiprocessors * 8, 256, arguments)
        gpus.chain_launcher([fill], bench.stream, pdl=False)()
        bench.stream.synchronize()
    return bench


def _pool_bytes(cupy: Any, options: Options) -> int:
    free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    wanted = max(options.largest_bytes * (options.layers or 16), POOL_BYTES)
    usable = min(wanted, free_bytes * 6 // 10)  # the copy's target takes half as much again
    pool: int = usable // options.largest_bytes * options.largest_bytes
    if not pool:
        raise WorkloadError(
            f"{free_bytes // KIB**2:,} MiB of GPU memory are free: too little for layers of"
            f" {options.largest_bytes // KIB**2:,} MiB; ask for less with --largest-mib"
        )
    return pool


def _measure_bandwidths(bench: Bench, options: Options) -> dict[str, Any]:
    """Read-only and copy bandwidth over the pool, medians, in bytes per second (copy: read + written)."""
    clock_mhz = gpus.clock_mhz(bench.gpu, bench.stream, 200)
    read = _time_reads(bench, options)
    copy = _time_copies(bench, options)
    facts: dict[str, Any] = {
        "sm_clock_mhz": [clock_mhz],
        "read_bytes_per_s": round(bench.pool_bytes * 1e9 / float(np.median(read.pass_ns))),
        "copy_bytes_per_s": round(bench.pool_bytes // 2 * 2 * 1e9 / float(np.median(copy.pass_ns))),
        "read_pass_ns": list(read.pass_ns),
        "copy_pass_ns": list(copy.pass_ns),
        "bandwidth_bytes": bench.pool_bytes,
        "share_of_read": {},
    }
    print(
        f"read {facts['read_bytes_per_s'] / 1e9:,.0f} GB/s, copy {facts['copy_bytes_per_s'] / 1e9:,.0f} GB/s"
    )
    return facts


def _time_reads(bench: Bench, options: Options) -> Timing:
    cupy = gpus.import_cupy()
    shape = Shape(bench.pool_bytes, 1, bench.gpu.multiprocessors * options.blocks_per_sm, options.block)
    sums = cupy.zeros(shape.warps, dtype=cupy.uint32)
    arguments = Arguments(sums.data.ptr, bench.pool.ptr, shape.vectors)
    launch = Launch(bench.plain.functions["read_only"], shape.grid, shape.block, arguments)
    plan = Plan(1, 4, options.repeats)
    timing = time_phase("read", gpus.chain_launcher([launch], bench.stream, pdl=False), bench.stream, plan)
    check("read", sums.get().astype(np.uint64), _first_layer_sums(shape)[1])
    return timing


def _time_copies(bench: Bench, options: Options) -> Timing:
    cupy = gpus.import_cupy()
    half = bench.pool_bytes // 2
    target = cupy.cuda.alloc(half)

    def copy() -> None:
        cupy.cuda.runtime.memcpyAsync(
            target.ptr, bench.pool.ptr, half, cupy.cuda.runtime.memcpyDeviceToDevice, bench.stream.ptr
        )

    return time_phase("copy", copy, bench.stream, Plan(0, 4, options.repeats))


def _run_case(
    bench: Bench, shape: Shape, mode: str, stamped: bool, options: Options, expected: Words
) -> tuple[Timing, Stamps | None]:
    name = f"{mode}:{size_name(shape.layer_bytes)}" + (":stamps" if stamped else "")
    chain = _build_chain(bench, shape, stamped)
    pdl = "pdl" in mode and bench.gpu.has_pdl
    enqueue = gpus.chain_launcher(chain.launches, bench.stream, pdl=pdl)
    if mode.startswith("graph"):
        plan = Plan(shape.layers, options.passes, options.repeats)
        graph = gpus.capture_graph(enqueue, bench.stream, shape.layers)
        timing = time_phase(name, gpus.graph_launcher(graph, bench.stream), bench.stream, plan)
        gpus.destroy_graph(graph)
    else:
        timing = time_phase(name, enqueue, bench.stream, Plan(shape.layers, 1, options.repeats))
    check(name, chain.output.get().astype(np.uint64), expected)
    return timing, read_stamps(mode, shape, chain.stamps.get()) if stamped and shape.layers > 2 else None


def _build_chain(bench: Bench, shape: Shape, stamped: bool) -> Chain:
    cupy = gpus.import_cupy()
    function = (bench.stamped if stamped else bench.plain).functions["layer"]
    stamps = cupy.zeros((shape.layers, 3 * shape.grid) if stamped else (1, 1), dtype=cupy.uint64)
    start = cupy.zeros(shape.warps, dtype=cupy.uint32)
    buffers = (cupy.empty_like(start), cupy.empty_like(start))
    launches = []
    for index in range(shape.layers):
        source = buffers[index % 2] if index else start
        target = buffers[(index + 1) % 2]
        weights = bench.pool.ptr + index * shape.layer_bytes
        row = stamps.data.ptr + (index * stamps.strides[0] if stamped else 0)
        arguments = Arguments(source.data.ptr, target.data.ptr, weights, shape.vectors, row)
        launches.append(Launch(function, shape.grid, shape.block, arguments))
    cupy.cuda.Device().synchronize()
    return Chain(shape, tuple(launches), start, buffers, stamps)


def read_stamps(mode: str, shape: Shape, stamps: Words) -> Stamps:
    """The last pass's boundaries: rows of `stamps` are layers, columns (started, released, ended) a block.

    Needs three layers: the first boundary of a replay is not like the others and is left out.
    """
    times = stamps.reshape(shape.layers, shape.grid, 3).astype(np.int64)
    started, released = times[:, :, 0].min(axis=1), times[:, :, 1].min(axis=1)
    ended = times[:, :, 2].max(axis=1)
    gaps = (started[1:] - ended[:-1])[1:]
    releases = (released[1:] - ended[:-1])[1:]
    ticks = np.diff(np.unique(times))
    p10, median, p90 = np.percentile(gaps, (10, 50, 90))
    return Stamps(
        mode=mode,
        layer_bytes=shape.layer_bytes,
        device_gap_ns=float(median),
        device_gap_p10_ns=float(p10),
        device_gap_p90_ns=float(p90),
        release_ns=float(np.median(releases)),
        tick_ns=int(ticks.min()) if len(ticks) else 0,
    )


def size_name(layer_bytes: int) -> str:
    """`64KiB`, `16MiB`."""
    return f"{layer_bytes // KIB**2}MiB" if layer_bytes >= KIB**2 else f"{layer_bytes // KIB}KiB"


def size_line(shape: Shape, timings: list[Timing], read_bytes_per_s: int) -> str:
    """One size's periods: `64KiB x 2048  graph 1.115  graph+pdl 0.824 us a layer, 2 % of read  PASS`."""
    parts = "  ".join(
        f"{mode} {period_ns / 1e3:.3f}" for mode, period_ns in _periods_ns(shape, timings).items()
    )
    share = 100 * _share_of_read(shape, timings, read_bytes_per_s)
    name = size_name(shape.layer_bytes)
    return f"{name:>7} x {shape.layers:<4}  {parts} us a layer, {share:.0f} % of read  PASS"


def _periods_ns(shape: Shape, timings: list[Timing]) -> dict[str, float]:
    suffix = f":{size_name(shape.layer_bytes)}"
    return {
        timing.mode.removesuffix(suffix): float(np.median(timing.pass_ns)) / timing.kernels
        for timing in timings
        if timing.mode.endswith(suffix)
    }


def _share_of_read(shape: Shape, timings: list[Timing], read_bytes_per_s: int) -> float:
    """The layer's bandwidth in its fastest mode, as a share of the read-only kernel's."""
    fastest_ns = min(_periods_ns(shape, timings).values())
    return shape.layer_bytes * 1e9 / fastest_ns / read_bytes_per_s


def main(  # noqa: PLR0913, PLR0917 - a command line
    smallest_kib: Annotated[int, typer.Option(help="Weights of the smallest layer, a power of two.")] = 64,
    largest_mib: Annotated[int, typer.Option(help="Weights of the largest layer, a power of two.")] = 256,
    layers: Annotated[int, typer.Option(help="Kernels in a pass; 0: weights of four times the L2.")] = 0,
    passes: Annotated[int, typer.Option(help="Passes a timing.")] = 5,
    repeats: Annotated[int, typer.Option(help="Timings a mode.")] = 5,
    block: Annotated[int, typer.Option(help="Threads a block, a power of two from 32.")] = 512,
    blocks_per_sm: Annotated[int, typer.Option(help="Most blocks of a grid, a multiprocessor.")] = 32,
    stamps: Annotated[bool, typer.Option(help="Run again with %globaltimer stamps in the kernels.")] = True,
    eager: Annotated[bool, typer.Option(help="Also launch the kernels one by one.")] = True,
    result: Annotated[
        Path | None, typer.Option(envvar="TRACEKIT_RESULT", help="Write the timings here, as JSON.")
    ] = None,
) -> None:
    """Layers of 64 KiB to 256 MiB of weights, eager and as a graph, with and without PDL, each checked.

    Example: python -m workloads.boundary_sweep --largest-mib 64 --no-eager
    """
    options = Options(
        smallest_kib * KIB, largest_mib * KIB**2, layers, passes, repeats, block, blocks_per_sm, stamps, eager
    )

    def run_and_write() -> None:
        require_possible(options)
        write_result(run(options), result)

    exit_on_error(run_and_write)


def require_possible(options: Options) -> None:
    """Raise WorkloadError for sizes and blocks that the kernels cannot take."""
    require_sane({"passes": options.passes, "repeats": options.repeats}, options.block)
    powers = {
        "smallest-kib": options.smallest_bytes,
        "largest-mib": options.largest_bytes,
        "block": options.block,
    }
    for name, value in powers.items():
        if value < 1 or value & (value - 1):
            raise WorkloadError(f"--{name} must be a power of two")
    if options.block < 32 or options.smallest_bytes < 16 * KIB or options.layers < 0:
        raise WorkloadError("--block must be at least 32, --smallest-kib at least 16, --layers at least 0")
    if options.smallest_bytes > options.largest_bytes:
        raise WorkloadError("--smallest-kib is larger than --largest-mib")


if __name__ == "__main__":
    typer.run(main)
