"""`tracekit estimate`: the handbook's decode-step estimate on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli_gaps import exported
from tracekit.cli_step import Asked, Traced, choose_steps, measure_traced
from tracekit.decode.estimate import (
    HANDBOOK_EFFICIENCY,
    HANDBOOK_LAUNCH_NS,
    StepEstimate,
    WhatIf,
    estimate_step,
    list_what_ifs,
)
from tracekit.decode.gpus import GpuFigures, find_gpu, gpu_of_bandwidth
from tracekit.decode.kernels import FUSIONS, Step
from tracekit.decode.models import load_model
from tracekit.errors import UsageError
from tracekit.report.estimate import render_csv, render_json, render_kernels_csv, render_text

if TYPE_CHECKING:
    from tracekit.decode.classes import ClassPattern

HANDBOOK_STEPS = (("Qwen3-0.6B", 1, 1024), ("Qwen3-8B", 1, 1024), ("Qwen3-0.6B", 64, 4096))
HANDBOOK_GPU = "H100"

Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="A model of the facts, or a Hugging Face config.json. May be repeated."),
]
Batch = Annotated[int | None, typer.Option(help="Sequences in the step; 1 unless given.")]
Context = Annotated[int | None, typer.Option(help="Tokens in the KV cache of each; 1024 unless given.")]
Gpu = Annotated[str | None, typer.Option(help=f"The GPU's name; {HANDBOOK_GPU} unless given.")]
Bandwidth = Annotated[float | None, typer.Option(help="Peak bandwidth in GB/s, instead of --gpu.")]
Efficiency = Annotated[float, typer.Option(help="Share of the peak bandwidth that kernels reach.")]
Dtype = Annotated[str, typer.Option(help="Type of the weights: bf16, fp16, fp8, int8, int4 ...")]
KvDtype = Annotated[str, typer.Option(help="Type of the KV cache.")]
Tp = Annotated[int, typer.Option(help="GPUs that share every layer.")]
GapUs = Annotated[str, typer.Option(help="Costs g of a boundary to try, in microseconds.")]
LaunchUs = Annotated[float, typer.Option(help="CPU time to launch one kernel, in microseconds.")]
Fusion = Annotated[str, typer.Option(help=f"The kernel list: {', '.join(FUSIONS)}.")]
FusedKernels = Annotated[int | None, typer.Option(help="What if the step had this many kernels.")]
OtherGpus = Annotated[
    list[str] | None, typer.Option("--other-gpu", help="What if it ran on this GPU. May be repeated.")
]
Kernels = Annotated[bool, typer.Option("--kernels", help="List the kernels with bytes and time each.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="One line a step and g; with --kernels, one a kernel.")]
Plot = Annotated[Path | None, typer.Option(help="Also write the figures to this HTML file.")]
TracePath = Annotated[Path | None, typer.Option("--trace", help="Hold a traced step against the estimate.")]
RangeName = Annotated[
    str | None, typer.Option("--range", help="A step is an instance of this NVTX range: a name or a pattern.")
]
Graph = Annotated[int | None, typer.Option(help="A step is a replay of this executable graph.")]
Skip = Annotated[int, typer.Option(min=0, help="Cut off this many steps at the start.")]
UntracedUs = Annotated[float | None, typer.Option(min=0, help="What a step takes untraced, in microseconds.")]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="A calibration of this GPU, instead of a packaged one.")
]
OwnClasses = Annotated[
    list[str] | None,
    typer.Option(
        "--class", help="CLASS=PATTERN: kernels of this class, as all_reduce=my_ar_.*; may be repeated."
    ),
]


def estimate(
    *,
    model: Models = None,
    batch: Batch = None,
    context: Context = None,
    gpu: Gpu = None,
    bandwidth: Bandwidth = None,
    efficiency: Efficiency = HANDBOOK_EFFICIENCY,
    dtype: Dtype = "bf16",
    kv_dtype: KvDtype = "bf16",
    tp: Tp = 1,
    gap_us: GapUs = "0.5,1,2,3",
    launch_us: LaunchUs = HANDBOOK_LAUNCH_NS / 1e3,
    fusion: Fusion = "handbook",
    fused_kernels: FusedKernels = None,
    other_gpu: OtherGpus = None,
    kernels: Kernels = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    plot: Plot = None,
    trace: TracePath = None,
    range_name: RangeName = None,
    graph: Graph = None,
    skip: Skip = 0,
    untraced_us: UntracedUs = None,
    calibration: CalibrationFile = None,
    own_class: OwnClasses = None,
) -> None:
    """Estimate a decode step: time to move its bytes, plus n kernel boundaries of g microseconds.

    Without options it prints the handbook's table; with --trace it holds the estimate against a traced
    step. Every figure comes with what it assumes.

    Example: tracekit estimate --model Qwen3-8B --gpu H200 --fusion vllm --gap-us 0.5,1 --kernels

    Example: tracekit estimate --trace x.sqlite --range decode_step --model Qwen3-0.6B --context 1024
    """
    asked = Asked(
        steps=choose_steps(model, batch, context) or ([] if trace else handbook_steps()),
        gpu=_find_gpu(gpu, bandwidth),
        efficiency=efficiency,
        launch_ns=_read_us("--launch-us", str(launch_us)),
        gaps_ns=tuple(_read_us("--gap-us", word) for word in gap_us.split(",")),
        fused_kernels=fused_kernels,
        others=tuple(map(find_gpu, other_gpu or ())),
    ).with_layout(weight_dtype=dtype, kv_dtype=kv_dtype, tp=tp, fusion=fusion)
    output = _choose_output(as_json, as_csv, kernels)
    if trace is not None:
        _refuse_idle({"--plot": plot}, "does not go with --trace")
        patterns = _read_patterns(own_class)
        traced = Traced(exported(trace), range_name, graph, skip, untraced_us, calibration, patterns)
        text = _hold_against(traced, asked, output)
    else:
        steps_of = {"--range": range_name, "--graph": graph, "--skip": skip or None}
        held_against = {"--untraced-us": untraced_us, "--calibration": calibration, "--class": own_class}
        _refuse_idle({**steps_of, **held_against}, "goes with --trace")
        text = _print_estimates(asked, output, plot)
    typer.echo(text.rstrip("\n"))


@dataclass(frozen=True)
class _Output:
    """How to print: `text`, `json` or `csv`, and whether with the kernel list."""

    form: str
    kernels: bool


def _print_estimates(asked: Asked, output: _Output, plot: Path | None) -> str:
    machine = asked.machine(asked.gpu or find_gpu(HANDBOOK_GPU))
    estimates = [estimate_step(step, machine, asked.gaps_ns) for step in asked.steps]
    what_ifs = _ask_what_ifs(estimates, asked.fused_kernels, asked.others)
    if plot is not None:
        from tracekit.report.estimate_plot import write_plot

        write_plot(estimates, plot)
    if output.form == "csv":
        return render_kernels_csv(estimates) if output.kernels else render_csv(estimates)
    render = render_json if output.form == "json" else render_text
    return render(estimates, what_ifs, kernels=output.kernels)


def _hold_against(traced: Traced, asked: Asked, output: _Output) -> str:
    from tracekit.readers import read
    from tracekit.report.step import step_csv, step_json, step_text

    measured = measure_traced(read(traced.path, shapes=True), traced, asked)
    if output.form == "text":
        return step_text(measured, kernels=output.kernels)
    return step_csv(measured) if output.form == "csv" else step_json(measured, kernels=output.kernels)


def _refuse_idle(options: Mapping[str, object], why: str) -> None:
    """An option that would change nothing is a mistake, and is said to be one."""
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} {why}")


def _read_patterns(own_classes: list[str] | None) -> tuple[ClassPattern, ...]:
    from tracekit.decode.classes import read_pattern

    return tuple(map(read_pattern, own_classes or ()))


def handbook_steps() -> list[Step]:
    """The handbook's three scenarios."""
    return [Step(load_model(name), batch, context) for name, batch, context in HANDBOOK_STEPS]


def _choose_output(as_json: bool, as_csv: bool, kernels: bool) -> _Output:
    if as_json and as_csv:
        raise UsageError("--json and --csv: choose one")
    return _Output("json" if as_json else "csv" if as_csv else "text", kernels)


def _find_gpu(name: str | None, bandwidth_gb_per_s: float | None) -> GpuFigures | None:
    if name is not None and bandwidth_gb_per_s is not None:
        raise UsageError("--gpu and --bandwidth: choose one")
    if bandwidth_gb_per_s is None:
        return None if name is None else find_gpu(name)
    if not 0 < bandwidth_gb_per_s < 1e6:
        raise UsageError(f"--bandwidth {bandwidth_gb_per_s:g}: GB/s are wanted, as in 4800")
    return gpu_of_bandwidth(round(bandwidth_gb_per_s * 1e9), "--bandwidth")


def _ask_what_ifs(
    estimates: list[StepEstimate], fused_kernels: int | None, others: tuple[GpuFigures, ...]
) -> tuple[WhatIf, ...]:
    """What-ifs are about one step; with several they are refused when asked for, else left out."""
    if len(estimates) == 1:
        return list_what_ifs(estimates[0], estimates[0].gaps[0].gap_ns, fused_kernels, others)
    if fused_kernels is not None or others:
        raise UsageError("--fused-kernels and --other-gpu ask about one step: give one --model")
    return ()


def _read_us(option: str, text: str) -> int:
    try:
        value_ns = round(float(text) * 1e3)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text}: numbers of microseconds are wanted, as in 0.5,1,2") from None
    if value_ns < 0:
        raise UsageError(f"{option} {text}: give 0 or more")
    return value_ns
