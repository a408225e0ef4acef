"""The decode step as time to move its bytes plus n boundaries of g, with everything it assumes."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.decode.gpus import GpuFigures
from tracekit.decode.kernels import Kernel, Step, kernel_assumptions, list_kernels
from tracekit.errors import UsageError

HANDBOOK_GAPS_NS = (500, 1000, 2000, 3000)
HANDBOOK_EFFICIENCY = 0.85
HANDBOOK_LAUNCH_NS = 5000
SHORT_KERNEL_NS = 1000  # the handbook's sentence counts the kernels below this

GAP_ASSUMPTION = "g, what one more kernel adds to the step, is assumed, and the same at every boundary"
PDL_SAVING_NS = 260  # docs/measured.md section 1: 1,040 ns a layer in a graph, 780 ns with PDL, one H200


@dataclass(frozen=True)
class Machine:
    """What runs the step: a GPU, the share of its peak bandwidth that kernels reach, the launch cost.

    `launch_ns` is the CPU's time to launch one kernel. `efficiency` and `launch_ns` default to what
    decode_gaps.py assumes. Raises UsageError for an efficiency outside (0, 1] or a negative launch.
    """

    gpu: GpuFigures
    efficiency: float = HANDBOOK_EFFICIENCY
    launch_ns: int = HANDBOOK_LAUNCH_NS

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"an efficiency of {self.efficiency:g}: give a share above 0, up to 1")
        if self.launch_ns < 0:
            raise UsageError(f"a launch of {self.launch_ns} ns: give 0 or more")

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The bandwidth that kernels reach: peak x efficiency."""
        return self.gpu.bandwidth_bytes_per_s * self.efficiency

    def time_ns(self, size_bytes: int) -> float:
        """How long the bytes take at the reached bandwidth."""
        return size_bytes / self.bandwidth_bytes_per_s * 1e9


@dataclass(frozen=True)
class TimedKernel:
    """A kernel of the step and the time its bytes take."""

    kernel: Kernel
    data_ns: float


@dataclass(frozen=True)
class GapEstimate:
    """The step under one boundary cost g, in the two forms.

    `additive_ns` = data + n x g: a boundary's cost adds to the data's time. `max_ns` = max(data, n x g):
    the shorter of the two hides behind the longer. The shares are of gaps in that form's step; in
    `max_ns` that is what lies above the data's time.
    """

    gap_ns: float
    additive_ns: float
    additive_gap_share: float
    max_ns: float
    max_gap_share: float


@dataclass(frozen=True)
class ShortKernels:
    """How many kernels take less than `limit_ns` for their data, and the mean of all."""

    count: int
    limit_ns: int
    mean_ns: float


@dataclass(frozen=True)
class StepEstimate:
    """An estimate of one decode step; nothing in it was measured.

    `launched_ns`: kernels launched one by one, without a graph, under the first g.
    """

    step: Step
    machine: Machine
    kernels: tuple[TimedKernel, ...]
    data_bytes: int
    data_ns: float
    launched_ns: float
    gaps: tuple[GapEstimate, ...]
    short: ShortKernels
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class StepTimes:
    """What a what-if starts from: data time, number of kernels, cost of a boundary and of a launch.

    From `estimate_step`, or measured: then `data_ns` is the kernels' time without their boundaries.
    """

    data_ns: float
    kernels: int
    gap_ns: float
    launch_ns: float

    @property
    def graph_ns(self) -> float:
        """data + n x g."""
        return self.data_ns + self.kernels * self.gap_ns

    @property
    def launched_ns(self) -> float:
        """max(n x launch, data + n x g): when the CPU cannot keep up, the GPU waits for it."""
        return max(self.kernels * self.launch_ns, self.graph_ns)


@dataclass(frozen=True)
class WhatIf:
    """A step before and after one change, and what the change takes for granted."""

    name: str
    before_ns: float
    after_ns: float
    assumption: str


def estimate_step(step: Step, machine: Machine, gaps_ns: tuple[int, ...] = HANDBOOK_GAPS_NS) -> StepEstimate:
    """The handbook's estimate (decode_gaps.py): every kernel takes its bytes / bandwidth, a boundary takes g.

    Raises UsageError without a g, or for a negative one.
    """
    if not gaps_ns or min(gaps_ns) < 0:
        raise UsageError("give at least one boundary cost g, none below 0")
    kernels = tuple(TimedKernel(kernel, machine.time_ns(kernel.total_bytes)) for kernel in list_kernels(step))
    data_bytes = sum(timed.kernel.total_bytes for timed in kernels)
    data_ns = machine.time_ns(data_bytes)
    return StepEstimate(
        step=step,
        machine=machine,
        kernels=kernels,
        data_bytes=data_bytes,
        data_ns=data_ns,
        launched_ns=StepTimes(data_ns, len(kernels), gaps_ns[0], machine.launch_ns).launched_ns,
        gaps=tuple(estimate_gap(data_ns, len(kernels), gap_ns) for gap_ns in gaps_ns),
        short=_count_short(kernels, data_ns),
        assumptions=(*_machine_assumptions(machine), GAP_ASSUMPTION, *kernel_assumptions(step)),
    )


def estimate_gap(data_ns: float, kernels: int, gap_ns: float) -> GapEstimate:
    """The step of n kernels under one g: data + n x g, and max(data, n x g)."""
    all_gaps_ns = kernels * gap_ns
    additive_ns, max_ns = data_ns + all_gaps_ns, max(data_ns, all_gaps_ns)
    return GapEstimate(
        gap_ns=gap_ns,
        additive_ns=additive_ns,
        additive_gap_share=gap_share(data_ns / 1e3, kernels, gap_ns / 1e3),
        max_ns=max_ns,
        max_gap_share=(max_ns - data_ns) / max_ns if max_ns else 0.0,
    )


def gap_share(data_us: float, kernels: int, gap_us: float) -> float:
    """The share of kernel boundaries in a decode step: n x g / (data + n x g), from 0 to 1.

    The handbook's practice question 92. In microseconds, as it asks. A step of no time has a share of 0.
    Raises UsageError for a negative argument.
    """
    if min(data_us, kernels, gap_us) < 0:
        raise UsageError("a step has no negative data time, kernels or gap")
    step_us = data_us + kernels * gap_us
    return kernels * gap_us / step_us if step_us else 0.0


def times_of(estimate: StepEstimate, gap_ns: float) -> StepTimes:
    """The estimated step as the what-ifs take it, under the given g."""
    return StepTimes(estimate.data_ns, len(estimate.kernels), gap_ns, estimate.machine.launch_ns)


def what_if_graph(times: StepTimes) -> WhatIf:
    """A CUDA graph in place of launches one by one."""
    return WhatIf(
        "CUDA graph instead of launches",
        times.launched_ns,
        times.graph_ns,
        "the graph takes the CPU out of the step and leaves every boundary its g",
    )


def what_if_pdl(times: StepTimes, saving_ns: float = PDL_SAVING_NS) -> WhatIf:
    """PDL on every boundary: each loses `saving_ns`, none falls below 0.

    The default is what PDL took off a chain of near-empty kernels in a graph (docs/measured.md section 1);
    section 2 has 290 to 404 ns a boundary for kernels of 64 KiB to 64 MiB.
    """
    saved_ns = min(saving_ns, times.gap_ns)
    return WhatIf(
        "PDL on every boundary",
        times.graph_ns,
        times.graph_ns - times.kernels * saved_ns,
        f"every boundary loses {saved_ns:.0f} ns of its g (an H200's chain of short kernels in a graph lost "
        "260 ns), and every kernel waits and triggers; cuBLAS's matrix-vector kernels do neither",
    )


def what_if_fused(times: StepTimes, kernels: int) -> WhatIf:
    """The step in `kernels` kernels. Raises UsageError for fewer than 1."""
    if kernels < 1:
        raise UsageError(f"{kernels} kernels: a step has 1 or more")
    return WhatIf(
        f"fusion to {kernels} kernels",
        times.graph_ns,
        times.data_ns + kernels * times.gap_ns,
        "the data's time stays: what fused kernels no longer write and read is neglected",
    )


def what_if_megakernel(times: StepTimes) -> WhatIf:
    """The whole step in one kernel."""
    return WhatIf(
        "one megakernel",
        times.graph_ns,
        times.data_ns + times.gap_ns,
        "waiting inside the kernel costs nothing and the bandwidth stays; measured on an H200 with layers of "
        "16,384 floats, a plain one was no faster than the graph (1.09 us a layer against 1.05), one in a "
        "cluster of 16 SMs took 0.34",
    )


def what_if_gpu(times: StepTimes, here: GpuFigures, there: GpuFigures) -> WhatIf:
    """The same step on another GPU: the data's time follows the peak bandwidth, nothing else changes."""
    data_ns = times.data_ns * here.bandwidth_bytes_per_s / there.bandwidth_bytes_per_s
    return WhatIf(
        f"on {there.name}",
        times.graph_ns,
        data_ns + times.kernels * times.gap_ns,
        f"the same share of the peak, {there.bandwidth_bytes_per_s / 1e12:g} TB/s ({there.source}), is "
        "reached, and g stays the same: neither was measured",
    )


def list_what_ifs(
    estimate: StepEstimate,
    gap_ns: float,
    fused_kernels: int | None = None,
    others: tuple[GpuFigures, ...] = (),
) -> tuple[WhatIf, ...]:
    """Every what-if that applies to an estimated step under one g; no PDL where the GPU has none."""
    times, gpu = times_of(estimate, gap_ns), estimate.machine.gpu
    return (
        what_if_graph(times),
        *([] if gpu.pdl is False else [what_if_pdl(times)]),
        *([] if fused_kernels is None else [what_if_fused(times, fused_kernels)]),
        what_if_megakernel(times),
        *(what_if_gpu(times, gpu, other) for other in others),
    )


def _count_short(kernels: tuple[TimedKernel, ...], data_ns: float) -> ShortKernels:
    count = sum(timed.data_ns < SHORT_KERNEL_NS for timed in kernels)
    return ShortKernels(count, SHORT_KERNEL_NS, data_ns / len(kernels))


def _machine_assumptions(machine: Machine) -> tuple[str, ...]:
    gpu = machine.gpu
    note = f"; {gpu.note}" if gpu.note else ""
    return (
        f"{gpu.name}: peak {gpu.bandwidth_bytes_per_s / 1e12:g} TB/s ({gpu.source}){note}",
        f"every kernel is bound by memory and reaches {100 * machine.efficiency:.3g} % of the peak: assumed",
        f"launched one by one, a step takes max(n x {machine.launch_ns / 1e3:g} us, data + n x the first g): "
        "the CPU's time a launch is assumed",
    )
