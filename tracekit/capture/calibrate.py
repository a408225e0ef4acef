"""Measures this GPU: the boundary sweep and the PDL chain untraced, and the chain traced where possible."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture.doctor import package_versions
from tracekit.capture.process import Echo, end_of_output, run_logged
from tracekit.capture.profile import (
    Job,
    Options,
    Recording,
    Run,
    Tracer,
    choose_tracer,
    describe_machine,
    environment_of,
    plan_job,
    record,
    shown_words,
)
from tracekit.capture.workload_result import WorkloadResult, read_workload_result
from tracekit.decode.calibration import Calibration, CurvePoint, Measured, Perturbation, summarize
from tracekit.errors import CaptureError

SWEEP = "boundary_sweep"
CHAIN = "pdl_chain"
MODES = ("stream", "stream+pdl", "graph", "graph+pdl")
# gaps are an analysis, which nothing here knows: whoever calls `calibrate` says how to read them off a trace
WhiteSpace = Callable[[Path], Mapping[str, Measured]]


@dataclass(frozen=True)
class Plan:
    """How to calibrate; `traced` also records the chain at both graph levels, which perturbation needs."""

    backend: str = "auto"
    traced: bool = True
    sweep_arguments: tuple[str, ...] = ()


def calibrate(plan: Plan, echo: Echo, white_space: WhiteSpace | None = None) -> Calibration:
    """Run the workloads and put their figures together. Raises CaptureError.

    Without a profiler, or with `traced` off, perturbation and white space stay empty.
    """
    sweep_job, chain_job = plan_job((SWEEP, *plan.sweep_arguments)), plan_job((CHAIN,))
    streams_job = plan_job((CHAIN, "--streams", "3"))
    with tempfile.TemporaryDirectory(prefix="tracekit-") as name:
        folder = Path(name)
        sweep = _run(sweep_job, folder / "sweep.json", echo)
        chain = _run(chain_job, folder / "chain.json", echo)
        chain_of_several = _run(streams_job, folder / "streams.json", echo)
        recording = _record_chain(plan, folder / "chain.sqlite", echo)
        white = white_space(recording.trace) if recording and white_space else {}
    runs = (sweep, chain, chain_of_several)
    machine = describe_machine(runs)
    sweep_result, chain_result, streams_result = (_result(run) for run in runs)
    return Calibration(
        gpu=machine.gpu or "unknown",
        compute_capability=_compute_capability(sweep_result),
        driver=machine.driver,
        cuda=machine.cuda,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        sm_clock_mhz=machine.sm_clock_mhz,
        read_bytes_per_s=_bandwidth(sweep_result, "read_pass_ns"),
        copy_bytes_per_s=_bandwidth(sweep_result, "copy_pass_ns"),
        empty_layer_bytes=int(chain_result.facts["layer_bytes"]),
        boundary_cost_ns=_boundary_costs(chain_result),
        white_space_ns=white,
        perturbation=_perturbation(recording, chain_result) if recording else (),
        curve=_curve(sweep_result),
        commands=tuple(" ".join(run.argv) for run in runs),
        versions=package_versions(),
        boundary_cost_several_streams_ns=_boundary_costs(streams_result),
    )


def _run(job: Job, result: Path, echo: Echo) -> Run:
    command = (*job.command, "--result", str(result))
    finished = run_logged(command, echo, environment=environment_of(job, Tracer(None)))
    if finished.returncode:
        raise CaptureError(f"{job.name} failed with exit code {finished.returncode}{end_of_output(finished)}")
    return Run("untraced", shown_words(command), read_workload_result(result, "untraced"), finished.wall_ns)


def _result(run: Run) -> WorkloadResult:
    if run.result is None:
        raise CaptureError("a workload left no result")
    return run.result


def _record_chain(plan: Plan, trace: Path, echo: Echo) -> Recording | None:
    if not plan.traced:
        return None
    options = Options(output=trace, backend=plan.backend, untraced=False)
    try:
        choose_tracer(options)
    except CaptureError as error:
        if plan.backend != "auto":
            raise
        echo(f"not traced, so without perturbation and white space: {error}")
        return None
    return record((CHAIN, "--repeats", "5", "--forwards", "20"), options, echo)


def _compute_capability(result: WorkloadResult) -> str:
    return f"{result.gpu['compute_major']}.{result.gpu['compute_minor']}"


def _bandwidth(result: WorkloadResult, repeats: str) -> Measured:
    moved_bytes = result.facts["bandwidth_bytes"]
    return summarize([moved_bytes * 1e9 / pass_ns for pass_ns in result.facts[repeats]])


def _boundary_costs(chain: WorkloadResult) -> dict[str, Measured]:
    return {timing.mode: _per_kernel(chain, timing.mode) for timing in chain.timings if timing.mode in MODES}


def _per_kernel(result: WorkloadResult, mode: str) -> Measured:
    kernels = next(timing.kernels for timing in result.timings if timing.mode == mode) or 1
    return summarize([pass_ns / kernels for pass_ns in result.repeats_ns[mode]])


def _perturbation(recording: Recording, untraced: WorkloadResult) -> tuple[Perturbation, ...]:
    periods = {timing.mode: timing for timing in untraced.timings if timing.kernels}
    rows = []
    for traced in recording.sidecar.timings:
        base = periods.get(traced.mode)
        if base is not None and base.kernels and traced.kernels:
            base_ns = base.pass_ns / base.kernels
            times = (traced.pass_ns, traced.min_ns, traced.max_ns)
            median, low, high = (time_ns / traced.kernels - base_ns for time_ns in times)
            rows.append(Perturbation(traced.mode, traced.level, Measured(median, low, high, traced.repeats)))
    return tuple(rows)


def _curve(sweep: WorkloadResult) -> tuple[CurvePoint, ...]:
    gaps = {(stamp.mode, stamp.layer_bytes): stamp for stamp in sweep.stamps}
    points = []
    for timing in sweep.timings:
        mode, _, size = timing.mode.partition(":")
        if mode not in MODES or not size or size.endswith(":stamps"):
            continue
        layer_bytes = parse_size(size)
        stamp = gaps.get((mode, layer_bytes))
        gap = (
            Measured(stamp.device_gap_ns, stamp.device_gap_p10_ns, stamp.device_gap_p90_ns, 1)
            if stamp
            else None
        )
        points.append(CurvePoint(mode, layer_bytes, _per_kernel(sweep, timing.mode), gap))
    return tuple(points)


def parse_size(name: str) -> int:
    """`64KiB`, `16MiB` in bytes."""
    units = {"KiB": 1024, "MiB": 1024**2}
    return int(name[:-3]) * units[name[-3:]]
