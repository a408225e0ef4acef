"""The estimate held against a traced step: each reading of g gives a prediction, each prediction an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.boundaries import Boundaries
from tracekit.analysis.steps import Step, Steps
from tracekit.decode.calibration import Calibration, Measured
from tracekit.decode.classes import (
    OTHER,
    ClassPattern,
    ClassRow,
    TracedKernel,
    UnmatchedName,
    find_unmatched,
    tabulate_classes,
)
from tracekit.decode.estimate import (
    StepEstimate,
    StepTimes,
    WhatIf,
    estimate_gap,
    what_if_fused,
    what_if_megakernel,
    what_if_pdl,
)
from tracekit.decode.gpus import GpuFigures
from tracekit.trace import Trace


@dataclass(frozen=True)
class Reading:
    """One reading of g, the cost of a kernel boundary, and where it comes from."""

    name: str
    gap_ns: float
    source: str


@dataclass(frozen=True)
class Prediction:
    """A step predicted from data + n x g (`additive_ns`) and from max(data, n x g).

    The time-against-bytes curve needs no g: `kernels` and `gap_ns` are None there, and so is `max_ns`.
    """

    reading: str
    kernels: int | None
    gap_ns: float | None
    additive_ns: float
    max_ns: float | None
    source: str


@dataclass(frozen=True)
class Tracing:
    """What tracing added to a step: the traced span and period beside the untraced time of a step.

    An untraced time is taken over many steps, so it is a period; `period_ns` is None for a single step.
    """

    untraced_ns: float
    span_ns: float
    period_ns: float | None
    kernels: int

    @property
    def added_per_kernel_ns(self) -> float:
        """What the span has more than the untraced step, over its kernels; negative: not the same work,
        or the untraced steps had time between them."""
        return (self.span_ns - self.untraced_ns) / self.kernels


@dataclass(frozen=True)
class MeasuredStep:
    """A traced step with everything that is held against it.

    `target_ns` is what predictions are compared with, `target` says what it is: the untraced time where
    it is known, else the traced period (steps back to back) or span. `data_ns` is the estimated time of
    the step's bytes, None without a model; then there are no predictions.
    """

    steps: Steps
    estimate: StepEstimate | None
    data_ns: float | None
    target: str
    target_ns: float
    tracing: Tracing | None
    classes: tuple[ClassRow, ...]
    unmatched: tuple[UnmatchedName, ...]
    predictions: tuple[Prediction, ...]
    what_ifs: tuple[WhatIf, ...]
    assumptions: tuple[str, ...]

    @property
    def kernels(self) -> int:
        """Kernels of the typical step."""
        return len(self.steps.typical.kernels)

    @property
    def other_ns(self) -> int:
        """Kernel time that no class explains."""
        return sum(row.measured_ns for row in self.classes if row.row == OTHER)


@dataclass(frozen=True)
class Question:
    """What to hold a trace's steps against: an estimate, readings of g, an untraced time, changes; and
    patterns of kernel names that go before those of the facts."""

    estimate: StepEstimate | None = None
    assumed_gaps_ns: tuple[int, ...] = ()
    calibration: Calibration | None = None
    untraced_ns: float | None = None
    fused_kernels: int | None = None
    other_gpus: tuple[GpuFigures, ...] = ()
    patterns: tuple[ClassPattern, ...] = ()


def measure_step(trace: Trace, boundaries: Boundaries, steps: Steps, question: Question) -> MeasuredStep:
    """Hold the typical step of a trace against the estimate.

    The trace must have been read with the kernels' shapes: the class table needs the grids. Raises what
    `find_unmatched` raises.
    """
    step, estimate = steps.typical, question.estimate
    listed = [timed.kernel for timed in estimate.kernels] if estimate else []
    target, target_ns = _target(steps, question.untraced_ns)
    white = read_white_space(boundaries, steps)
    readings = list_readings(question, white, _overlaps(boundaries, steps))
    data_ns = estimate.data_ns if estimate else None
    traced = _traced(trace, step)
    return MeasuredStep(
        steps=steps,
        estimate=estimate,
        data_ns=data_ns,
        target=target,
        target_ns=target_ns,
        tracing=_tracing(steps, question.untraced_ns),
        classes=tabulate_classes(traced, listed, question.patterns),
        unmatched=find_unmatched(traced, question.patterns),
        predictions=_predict(question, readings, len(step.kernels)) if estimate else (),
        what_ifs=_what_ifs(steps, question, readings),
        assumptions=tuple(f"{r.name}: {r.source}" for r in (readings if estimate else readings[-1:])),
    )


def read_white_space(boundaries: Boundaries, steps: Steps) -> Reading:
    """g read as the white space: the median gap of the boundaries inside the steps, overlap as zero.

    On an H200 in a graph this is a tenth of what a boundary costs: the launch and the drain of a kernel
    are inside its recorded duration.
    """
    gaps = np.concatenate([boundaries.gap_ns[_inner(boundaries, step)] for step in steps.steps])
    median = float(np.median(np.maximum(gaps, 0))) if len(gaps) else 0.0
    source = f"median white space of {len(gaps):,} boundaries in this trace; not what a boundary costs"
    return Reading("white space", median, source)


def list_readings(question: Question, white: Reading, overlaps: bool) -> tuple[Reading, ...]:
    """Every reading of g there is: assumed, white space, and the calibration's boundary costs.

    The last is the one that what-ifs stand on. How many streams of the process launched kernels before the
    recording is not in a trace, so both boundary costs are given.
    """
    gaps_ns = question.assumed_gaps_ns
    assumed = [Reading(f"assumed {g / 1e3:g} us", float(g), "assumed, not measured") for g in gaps_ns]
    calibrated = _boundary_costs(question.calibration, "graph+pdl" if overlaps else "graph")
    return (*assumed, white, *calibrated)


def _boundary_costs(calibration: Calibration | None, mode: str) -> list[Reading]:
    if calibration is None:
        return []
    of_several, of_one = calibration.boundary_cost_several_streams_ns, calibration.boundary_cost_ns
    named = {
        "boundary cost, several streams": (
            of_several,
            "after further streams of the process launched kernels, ",
        ),
        "boundary cost": (of_one, ""),
    }
    return [
        Reading(name, costs[mode].median, _source(calibration, costs[mode], f"{when}mode {mode}"))
        for name, (costs, when) in named.items()
        if mode in costs
    ]


def _source(calibration: Calibration, cost: Measured, how: str) -> str:
    return (
        f"{calibration.gpu}, {calibration.date}, period of an almost empty layer, {how}, untraced: "
        f"{cost.low:.0f} to {cost.high:.0f} ns in {cost.repeats} runs"
    )


def sum_curve(calibration: Calibration, estimate: StepEstimate, mode: str) -> float | None:
    """The step as the sum of its kernels' times on the calibrated time-against-bytes curve.

    Between two sizes linear; below the smallest its time; above the largest the slope of the last two.
    The curve's times are periods: they hold the boundary. None where the mode was not swept.
    """
    points = calibration.curve_of(mode)
    if len(points) < 2:
        return None
    size = np.array([point.layer_bytes for point in points], dtype=float)
    period = np.array([point.period_ns.median for point in points])
    wanted = np.array([timed.kernel.total_bytes for timed in estimate.kernels], dtype=float)
    slope = (period[-1] - period[-2]) / (size[-1] - size[-2])
    beyond = np.maximum(wanted - size[-1], 0) * slope
    return float((np.interp(wanted, size, period) + beyond).sum())


def _target(steps: Steps, untraced_ns: float | None) -> tuple[str, float]:
    if untraced_ns is not None:
        return "the untraced step", untraced_ns
    return "the traced step's span", float(steps.typical.budget.span_ns)


def _tracing(steps: Steps, untraced_ns: float | None) -> Tracing | None:
    if untraced_ns is None:
        return None
    period_ns = float(np.median(steps.periods_ns)) if len(steps.periods_ns) else None
    return Tracing(untraced_ns, steps.typical.budget.span_ns, period_ns, len(steps.typical.kernels))


def _inner(boundaries: Boundaries, step: Step) -> NDArray[np.intp]:
    """Rows of the step's kernels whose boundary is inside the step."""
    rows = np.sort(step.kernels)
    inner: NDArray[np.intp] = rows[1:][(np.diff(rows) == 1) & boundaries.exists[rows[1:]]]
    return inner


def _overlaps(boundaries: Boundaries, steps: Steps) -> bool:
    """Whether most boundaries inside the steps overlap, as with PDL at every boundary."""
    gaps = np.concatenate([boundaries.gap_ns[_inner(boundaries, step)] for step in steps.steps])
    return bool(len(gaps)) and float(np.mean(gaps < 0)) > 0.5


def _traced(trace: Trace, step: Step) -> list[TracedKernel]:
    kernels = trace.kernels
    if kernels.grid is None:
        raise ValueError("read the trace with shapes=True")
    grids = kernels.grid[step.kernels].tolist()
    durations = (kernels.end_ns - kernels.start_ns)[step.kernels].tolist()
    names = [trace.names[code] for code in kernels.name[step.kernels]]
    return [TracedKernel(n, (x, y, z), d) for n, (x, y, z), d in zip(names, grids, durations, strict=True)]


def _predict(question: Question, readings: Sequence[Reading], traced: int) -> tuple[Prediction, ...]:
    estimate = question.estimate
    assert estimate is not None
    counts = dict.fromkeys((len(estimate.kernels), traced))
    found = []
    for reading in readings:
        for kernels in counts:
            gap = estimate_gap(estimate.data_ns, kernels, reading.gap_ns)
            found.append(
                Prediction(reading.name, kernels, reading.gap_ns, gap.additive_ns, gap.max_ns, reading.source)
            )
    return (*found, *_curve_predictions(question, estimate))


def _curve_predictions(question: Question, estimate: StepEstimate) -> list[Prediction]:
    if question.calibration is None:
        return []
    found = []
    for mode in ("graph", "graph+pdl"):
        total = sum_curve(question.calibration, estimate, mode)
        if total is not None:
            source = f"calibrated periods of {question.calibration.gpu}, {question.calibration.date}"
            found.append(Prediction(f"curve, {mode}", None, None, total, None, source))
    return found


def _what_ifs(steps: Steps, question: Question, readings: Sequence[Reading]) -> tuple[WhatIf, ...]:
    """Changes to the typical step as traced, under the best reading of g there is.

    Where n x g is more than the whole step, that g is not this step's: nothing is said of boundaries.
    """
    budget, kernels = steps.typical.budget, len(steps.typical.kernels)
    best = readings[-1]
    rest_ns = budget.span_ns - kernels * best.gap_ns
    times = StepTimes(rest_ns, kernels, best.gap_ns, launch_ns=0)
    launches_ns = budget.host_ns + budget.call_ns + budget.queued_ns + budget.unknown_ns
    graph = WhatIf(
        "CUDA graph instead of launches",
        budget.span_ns,
        budget.span_ns - launches_ns,
        "the white space before launches goes, and nothing takes its place",
    )
    found = [graph] if launches_ns else []
    if rest_ns >= 0:
        fused = question.fused_kernels
        found += [what_if_pdl(times)] if best.gap_ns else []
        found += [what_if_fused(times, fused)] if fused is not None else []
        found.append(what_if_megakernel(times))
    if question.estimate is not None:
        found += [_on_gpu(budget.span_ns, question.estimate, gpu) for gpu in question.other_gpus]
    return tuple(found)


def _on_gpu(span_ns: int, estimate: StepEstimate, there: GpuFigures) -> WhatIf:
    here = estimate.machine.gpu
    moved_ns = estimate.data_ns * here.bandwidth_bytes_per_s / there.bandwidth_bytes_per_s
    return WhatIf(
        f"on {there.name}",
        span_ns,
        span_ns - estimate.data_ns + moved_ns,
        f"only the bytes' time follows the peak, {there.bandwidth_bytes_per_s / 1e12:g} TB/s "
        f"({there.source}); everything else in the step stays",
    )
