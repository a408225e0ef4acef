"""What `estimate` and `report` share: a trace's steps held against the estimate that was asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.decode.estimate import (
    HANDBOOK_EFFICIENCY,
    HANDBOOK_GAPS_NS,
    HANDBOOK_LAUNCH_NS,
    Machine,
    estimate_step,
)
from tracekit.decode.gpus import GpuFigures, find_gpu, gpu_of_bandwidth
from tracekit.decode.kernels import Step
from tracekit.decode.models import load_model
from tracekit.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from tracekit.analysis.steps import Steps
    from tracekit.decode.calibration import Calibration
    from tracekit.decode.classes import ClassPattern
    from tracekit.decode.measured import MeasuredStep
    from tracekit.trace import Trace


@dataclass(frozen=True)
class Asked:
    """The estimate's side of the command line; `gpu` is None where none was named."""

    steps: list[Step]
    gpu: GpuFigures | None = None
    efficiency: float = HANDBOOK_EFFICIENCY
    launch_ns: int = HANDBOOK_LAUNCH_NS
    gaps_ns: tuple[int, ...] = HANDBOOK_GAPS_NS
    fused_kernels: int | None = None
    others: tuple[GpuFigures, ...] = ()

    def with_layout(self, **layout: Any) -> Asked:
        """The same with these fields of every step changed."""
        return replace(self, steps=[replace(step, **layout) for step in self.steps])

    def machine(self, gpu: GpuFigures) -> Machine:
        """The GPU as asked to be used."""
        return Machine(gpu, self.efficiency, self.launch_ns)


@dataclass(frozen=True)
class Traced:
    """The trace's side of the command line."""

    path: Path
    range_name: str | None = None
    graph: int | None = None
    skip: int = 0
    untraced_us: float | None = None
    calibration: Path | None = None
    patterns: tuple[ClassPattern, ...] = ()


def choose_steps(models: list[str] | None, batch: int | None, context: int | None) -> list[Step]:
    """One step a named model, of batch 1 and context 1,024 unless given; none without a name."""
    if models:
        sizes = (1 if batch is None else batch, 1024 if context is None else context)
        return [Step(load_model(name), *sizes) for name in models]
    if batch is not None or context is not None:
        raise UsageError("--batch and --context go with --model")
    return []


def measure_traced(trace: Trace, traced: Traced, asked: Asked) -> MeasuredStep:
    """The trace's steps held against what was asked; raises what `find_steps` and `find_gpu` raise.

    The trace must have been read with the kernels' shapes.
    """
    from tracekit.analysis.boundaries import find_boundaries
    from tracekit.analysis.steps import find_steps
    from tracekit.decode.measured import Question, measure_step

    if len(asked.steps) > 1:
        raise UsageError("a trace is about one step: give one --model")
    steps = find_steps(trace, traced.range_name, traced.graph, traced.skip)
    gpu = _gpu_of(trace, steps, asked)
    estimate = None if gpu is None else estimate_step(asked.steps[0], asked.machine(gpu), asked.gaps_ns)
    question = Question(
        estimate=estimate,
        assumed_gaps_ns=asked.gaps_ns,
        calibration=_find_calibration(traced, trace, steps),
        untraced_ns=_untraced_ns(traced, trace, steps),
        fused_kernels=asked.fused_kernels,
        other_gpus=asked.others,
        patterns=traced.patterns,
    )
    return measure_step(trace, find_boundaries(trace), steps, question)


def _gpu_of(trace: Trace, steps: Steps, asked: Asked) -> GpuFigures | None:
    """The GPU the estimate is for: as named, else the one the trace was recorded on; None without a model."""
    if not asked.steps:
        return None
    if asked.gpu is not None:
        return asked.gpu
    recorded = trace.gpu_of(steps.process, steps.device)
    if recorded is None:
        raise UsageError("the trace does not say which GPU it was recorded on: name it with --gpu")
    try:
        return find_gpu(recorded.name)
    except UnknownNameError:
        if recorded.memory_bandwidth_bytes_per_s is None:
            raise
        return gpu_of_bandwidth(recorded.memory_bandwidth_bytes_per_s, f"{recorded.name}, from the recording")


def _find_calibration(traced: Traced, trace: Trace, steps: Steps) -> Calibration | None:
    from tracekit.decode.calibration import load_calibration, packaged_calibrations

    if traced.calibration is not None:
        return load_calibration(traced.calibration)
    recorded = trace.gpu_of(steps.process, steps.device)
    return packaged_calibrations().get(recorded.name) if recorded else None


def _untraced_ns(traced: Traced, trace: Trace, steps: Steps) -> float | None:
    """What a step takes untraced: as given, else from the sidecar's timing of the same phase.

    A phase is timed by pass: it counts only where a pass has as many kernels as the step.
    """
    from tracekit.capture.sidecar import find_sidecar

    if traced.untraced_us is not None:
        return traced.untraced_us * 1e3
    sidecar = find_sidecar(traced.path)
    if sidecar is None:
        return None
    timings = [sidecar.timing(mode, "untraced") for mode in steps.find_ranges(trace, "tracekit")]
    alike = [t.pass_ns for t in timings if t is not None and t.kernels == len(steps.typical.kernels)]
    return float(alike[0]) if alike else None
