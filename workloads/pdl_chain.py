"""200 tiny layers in a row, launched four ways: what PDL and a CUDA graph take off a kernel boundary.

The program of the handbook's PDL chapter. A layer is out = relu(in) x weight + bias; its prologue reads
weights only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from workloads import gpu as gpus
from workloads.checking import require_close
from workloads.errors import WorkloadError, exit_on_error
from workloads.gpu import Arguments, Gpu, Launch
from workloads.phases import MODES, Plan, Timing, phase, time_phase
from workloads.result import Result, write_result

SHOWS = "200 tiny layers launched four ways: what PDL and a CUDA graph take off a kernel boundary"
TRACED_ARGUMENTS = ("--repeats", "1")
SPIN_UP_MS = 200
FloatArray = NDArray[np.float32]


class Trigger(StrEnum):
    """Where a block lets the next kernel start: at once, after its output is stored, or by ending."""

    EARLY = "early"
    LATE = "late"
    NONE = "none"


TRIGGER_CODES = {Trigger.NONE: 0, Trigger.LATE: 1, Trigger.EARLY: 2}


@dataclass(frozen=True)
class Options:
    """`size` floats a layer; `forwards` passes of the chain a timing; of `streams` in all one is timed, the
    others launch the chain once before."""

    layers: int = 200
    size: int = 16_384
    block: int = 256
    trigger: Trigger = Trigger.LATE
    forwards: int = 20
    repeats: int = 5
    manual_graph: bool = False
    read_only_weights: bool = False
    streams: int = 1


@dataclass(frozen=True)
class Numbers:
    """The chain's inputs, on the host: weights and biases have a row a layer."""

    start: FloatArray
    weights: FloatArray
    biases: FloatArray


@dataclass(frozen=True)
class Chain:
    """The chain on the GPU; `buffers` are written in turn and `arrays` keeps the rest alive."""

    launches: tuple[Launch, ...]
    buffers: tuple[Any, Any]
    arrays: tuple[Any, ...]

    @property
    def output(self) -> Any:
        return self.buffers[(len(self.launches) - 1) % 2]


def run(options: Options) -> Result:
    """Time the chain in the four modes, check each against NumPy, print the handbook's lines."""
    gpu = gpus.open_gpu()
    print_pdl_note(gpu)
    stream = gpus.import_cupy().cuda.Stream(non_blocking=True)
    numbers = make_numbers(options)
    with phase("setup"):
        chain = upload(gpu, options, numbers)
        _use_other_streams(chain, options.streams - 1)
        clock_mhz = gpus.clock_mhz(gpu, stream, SPIN_UP_MS)
    expected = expected_output(numbers)
    timings, edges = [], {}
    for mode in MODES:
        timing, edges[mode] = _run_mode(mode, chain, stream, options, pdl="pdl" in mode and gpu.has_pdl)
        check(mode, chain.output.get(), expected)
        print(result_line(timing))
        timings.append(timing)
    facts = {
        "sm_clock_mhz": [clock_mhz, gpus.clock_mhz(gpu, stream, 5)],
        "programmatic_edges": edges,
        "layer_bytes": 16 * options.size,
    }
    return Result("pdl_chain", dataclasses.asdict(options), gpu, tuple(timings), facts=facts)


def check(mode: str, got: FloatArray, expected: FloatArray) -> None:
    """Raise WrongResultError where the mode's output is not NumPy's, within float32 rounding."""
    require_close(mode, got, expected, relative=1e-5, absolute=1e-6)


def print_pdl_note(gpu: Gpu) -> None:
    """Say so where the GPU has no PDL."""
    if not gpu.has_pdl:
        print(f"note: PDL needs sm_90+, this GPU is {gpu.architecture}, so every mode runs without it")


def result_line(timing: Timing) -> str:
    """The handbook's line: `graph + PDL      156.3 us per forward,   0.78 us per layer   PASS`."""
    name = timing.mode.replace("+pdl", " + PDL")
    forward_us = float(np.median(timing.pass_ns)) / 1e3
    spread_us = (max(timing.pass_ns) - min(timing.pass_ns)) / 1e3
    return (
        f"{name:<13} {forward_us:8.1f} us per forward, {forward_us / timing.kernels:6.2f} us per layer   PASS"
        f"   (median of {len(timing.pass_ns)}, spread {spread_us:.1f} us)"
    )


def make_numbers(options: Options) -> Numbers:
    """The handbook's ranges: weights in [0.5, 1.5), biases in [-0.1, 0.1)."""
    random = np.random.default_rng(1)
    shape = (options.layers, options.size)
    return Numbers(
        start=random.uniform(-1, 1, options.size).astype(np.float32),
        weights=random.uniform(0.5, 1.5, shape).astype(np.float32),
        biases=random.uniform(-0.1, 0.1, shape).astype(np.float32),
    )


def expected_output(numbers: Numbers) -> FloatArray:
    """The chain in NumPy: products are exact in float64, so each layer rounds as one fused step does."""
    values = numbers.start
    for weight, bias in zip(numbers.weights, numbers.biases, strict=True):
        exact = np.maximum(values, 0).astype(np.float64) * weight + bias
        values = exact.astype(np.float32)
    return values


def upload(gpu: Gpu, options: Options, numbers: Numbers) -> Chain:
    """The chain's kernels, inputs and buffers on the GPU, and its launches in order."""
    cupy = gpus.import_cupy()
    defines = {
        "TRIGGER": TRIGGER_CODES[options.trigger],
        "READ_ONLY_WEIGHTS": int(options.read_only_weights),
    }
    kernels = gpus.load_kernels(gpu, "pdl_chain.cu", ["layer"], defines)
    start, weights, biases = (cupy.asarray(a) for a in (numbers.start, numbers.weights, numbers.biases))
    buffers = (cupy.empty_like(start), cupy.empty_like(start))
    launches = []
    source = start
    for index in range(options.layers):
        target = buffers[index % 2]
        pointers = (source.data.ptr, target.data.ptr, weights[index].data.ptr, biases[index].data.ptr)
        arguments = Arguments(*pointers, options.size)
        grid = -(-options.size // options.block)
        launches.append(Launch(kernels.functions["layer"], grid, options.block, arguments))
        source = target
    cupy.cuda.Device().synchronize()  # the uploads ran on another stream
    return Chain(tuple(launches), buffers, (start, weights, biases, kernels))


def _use_other_streams(chain: Chain, count: int) -> None:
    """Launch the chain once on each of so many streams that are not used again.

    On an H200, once two streams of a process have launched kernels, a boundary in a graph costs more.
    """
    for _ in range(count):
        stream = gpus.import_cupy().cuda.Stream(non_blocking=True)
        gpus.chain_launcher(chain.launches, stream, pdl=False)()
        stream.synchronize()


def _run_mode(
    mode: str, chain: Chain, stream: Any, options: Options, *, pdl: bool
) -> tuple[Timing, int | None]:
    for buffer in chain.buffers:
        buffer.data.memset_async(0xFF, buffer.nbytes, stream)  # NaN: what was not written shows
    enqueue = gpus.chain_launcher(chain.launches, stream, pdl=pdl)
    plan = Plan(options.layers, options.forwards, options.repeats)
    if not mode.startswith("graph"):
        return time_phase(mode, enqueue, stream, plan), 0
    graph = _make_graph(chain, enqueue, stream, options.manual_graph, pdl=pdl)
    timing = time_phase(mode, gpus.graph_launcher(graph, stream), stream, plan)
    gpus.destroy_graph(graph)
    return timing, graph.programmatic_edges


def _make_graph(
    chain: Chain, enqueue: Callable[[], None], stream: Any, by_hand: bool, *, pdl: bool
) -> gpus.Graph:
    if by_hand:
        return gpus.build_graph(chain.launches, pdl=pdl)
    return gpus.capture_graph(enqueue, stream, len(chain.launches))


def require_sane(values: Mapping[str, int], block: int) -> None:
    """Raise WorkloadError for counts below one and blocks that no GPU takes."""
    for name, value in values.items():
        if value < 1:
            raise WorkloadError(f"--{name} is {value}: it must be at least 1")
    if not 1 <= block <= 1024:
        raise WorkloadError(f"--block is {block}: a block has 1 to 1024 threads")


def main(  # noqa: PLR0913, PLR0917 - a command line
    layers: Annotated[int, typer.Option(help="Kernels in a forward.")] = 200,
    size: Annotated[int, typer.Option(help="Floats a layer.")] = 16_384,
    block: Annotated[int, typer.Option(help="Threads a block.")] = 256,
    trigger: Annotated[
        Trigger, typer.Option(help="Where a block lets the next kernel start.")
    ] = Trigger.LATE,
    forwards: Annotated[int, typer.Option(help="Forwards a timing.")] = 20,
    repeats: Annotated[int, typer.Option(help="Timings a mode.")] = 5,
    manual_graph: Annotated[
        bool, typer.Option("--manual-graph", help="Build the graph by nodes and edges.")
    ] = False,
    read_only_weights: Annotated[
        bool, typer.Option("--read-only-weights", help="Weights as the handbook declares them, __restrict__.")
    ] = False,
    streams: Annotated[
        int,
        typer.Option(
            help="Streams in all: all but one launch the chain once, before it is timed on that one."
        ),
    ] = 1,
    result: Annotated[
        Path | None, typer.Option(envvar="TRACEKIT_RESULT", help="Write the timings here, as JSON.")
    ] = None,
) -> None:
    """200 tiny layers in a row, launched four ways, each checked against NumPy.

    Example: python -m workloads.pdl_chain --trigger early --manual-graph
    """
    options = Options(
        layers, size, block, trigger, forwards, repeats, manual_graph, read_only_weights, streams
    )

    def run_and_write() -> None:
        counts = {"layers": layers, "size": size, "forwards": forwards, "repeats": repeats}
        counts["streams"] = streams
        require_sane(counts, block)
        write_result(run(options), result)

    exit_on_error(run_and_write)


if __name__ == "__main__":
    typer.run(main)
