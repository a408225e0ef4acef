"""The chain of pdl_chain in Triton: gdc_wait, gdc_launch_dependents and launch_pdl=True.

Triton's wait is inline assembly without a memory clobber, so it stands before the first load of shared data
and no loop surrounds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from workloads import gpu as gpus
from workloads import pdl_chain
from workloads.errors import WorkloadError, exit_on_error
from workloads.pdl_chain import check, expected_output, make_numbers, print_pdl_note, result_line
from workloads.phases import MODES, Plan, Timing, phase, time_phase
from workloads.result import Result, write_result

SHOWS = "the same chain in Triton (gdc_wait, gdc_launch_dependents, launch_pdl=True)"
TRACED_ARGUMENTS = ("--repeats", "1")

__all__ = ["SHOWS", "TRACED_ARGUMENTS", "Options", "check", "main", "run"]


@dataclass(frozen=True)
class Options:
    """`size` floats a layer; `forwards` passes of the chain a timing."""

    layers: int = 200
    size: int = 16_384
    block: int = 256
    forwards: int = 20
    repeats: int = 5


@dataclass(frozen=True)
class Chain:
    """Torch's tensors: two buffers in turn after the start, a row of weights and biases a layer."""

    start: Any
    buffers: tuple[Any, Any]
    weights: Any
    biases: Any


def run(options: Options) -> Result:
    """Time the Triton chain in the four modes and check each against NumPy."""
    torch, layer = _import_triton()
    gpu = gpus.open_gpu()
    print_pdl_note(gpu)
    numbers = make_numbers(pdl_chain.Options(layers=options.layers, size=options.size))
    with phase("setup"):
        chain = _upload(torch, numbers)
    expected = expected_output(numbers)
    timings = []
    for mode in MODES:
        forward = _forward(layer, chain, options, pdl="pdl" in mode and gpu.has_pdl)
        timing = _run_mode(torch, mode, forward, chain, options)
        check(mode, chain.buffers[(options.layers - 1) % 2].cpu().numpy(), expected)
        print(result_line(timing))
        timings.append(timing)
    facts = {"layer_bytes": 16 * options.size}
    return Result("triton_pdl_chain", dataclasses.asdict(options), gpu, tuple(timings), facts=facts)


def _import_triton() -> tuple[Any, Any]:
    try:
        import torch
        import triton  # noqa: F401  (torch without Triton exists)

        from workloads.triton_layer import layer
    except ImportError as error:
        raise WorkloadError(f"{error.name or 'triton'} is not installed: pip install torch triton") from None
    if not torch.cuda.is_available():
        raise WorkloadError("torch sees no CUDA GPU: check nvidia-smi, or run `tracekit doctor`")
    return torch, layer


def _upload(torch: Any, numbers: pdl_chain.Numbers) -> Chain:
    start, weights, biases = (
        torch.from_numpy(array).cuda() for array in (numbers.start, numbers.weights, numbers.biases)
    )
    return Chain(start, (torch.empty_like(start), torch.empty_like(start)), weights, biases)


def _forward(layer: Any, chain: Chain, options: Options, *, pdl: bool) -> Callable[[], None]:
    grid = (-(-options.size // options.block),)

    def forward() -> None:
        source = chain.start
        for index in range(options.layers):
            target = chain.buffers[index % 2]
            layer[grid](
                source, target, chain.weights[index], chain.biases[index], options.size,
                BLOCK=options.block, PDL=pdl, launch_pdl=pdl, num_warps=max(1, options.block // 32),
            )  # fmt: skip
            source = target

    return forward


def _run_mode(torch: Any, mode: str, forward: Callable[[], None], chain: Chain, options: Options) -> Timing:
    stream = torch.cuda.Stream()
    plan = Plan(options.layers, options.forwards, options.repeats)
    with torch.cuda.stream(stream):
        forward()  # compiles; a capture must not
        stream.synchronize()
        for buffer in chain.buffers:
            buffer.fill_(float("nan"))
        one_pass = forward
        if mode.startswith("graph"):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                forward()
            one_pass = graph.replay
        events = gpus.import_cupy().cuda.ExternalStream(stream.cuda_stream)
        return time_phase(mode, one_pass, events, plan)


def main(
    layers: Annotated[int, typer.Option(help="Kernels in a forward.")] = 200,
    size: Annotated[int, typer.Option(help="Floats a layer.")] = 16_384,
    block: Annotated[int, typer.Option(help="Values a program, a power of two.")] = 256,
    forwards: Annotated[int, typer.Option(help="Forwards a timing.")] = 20,
    repeats: Annotated[int, typer.Option(help="Timings a mode.")] = 5,
    result: Annotated[
        Path | None, typer.Option(envvar="TRACEKIT_RESULT", help="Write the timings here, as JSON.")
    ] = None,
) -> None:
    """The chain of pdl_chain in Triton, launched four ways, each checked against NumPy.

    Example: python -m workloads.triton_pdl_chain --layers 100
    """
    options = Options(layers, size, block, forwards, repeats)

    def run_and_write() -> None:
        counts = {"layers": layers, "size": size, "forwards": forwards, "repeats": repeats}
        pdl_chain.require_sane(counts, block)
        if block & (block - 1):
            raise WorkloadError(f"--block is {block}: Triton takes powers of two")
        write_result(run(options), result)

    exit_on_error(run_and_write)


if __name__ == "__main__":
    typer.run(main)
