"""Records a workload or a user's program: untraced, at graph level, at node level."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracekit.capture import cupti, nsys
from tracekit.capture.doctor import cuda_version, package_versions, visible_gpus
from tracekit.capture.process import Echo, end_of_output, run_logged
from tracekit.capture.sidecar import Command, Machine, Sidecar, Stamps, Timing, sidecar_path, write_sidecar
from tracekit.capture.workload_result import WorkloadResult, read_workload_result
from tracekit.capture.workloads import Workload, find_workload, list_workloads
from tracekit.errors import CaptureError, UsageError

BACKENDS = ("auto", "nsys", "cupti")


@dataclass(frozen=True)
class Options:
    """How to record. `levels` are the graph levels, node last: the trace is the last one recorded.

    `backend` auto takes nsys where there is one and CUPTI where not.
    """

    output: Path | None = None
    backend: str = "auto"
    levels: tuple[str, ...] = ("graph", "node")
    untraced: bool = True
    nsys_args: tuple[str, ...] = ()
    capture_range: bool = False
    keep_report: bool = False
    force: bool = False


@dataclass(frozen=True)
class Job:
    """What to run. `workload` is None for a user's own command line."""

    name: str
    command: tuple[str, ...]
    workload: Workload | None


@dataclass(frozen=True)
class Recording:
    """What was written: the trace, the graph-level one where both were made, the sidecar and its content."""

    trace: Path
    graph_trace: Path | None
    sidecar_file: Path
    sidecar: Sidecar


@dataclass(frozen=True)
class Run:
    """One run of the job: how it was started, what the workload measured, the wall time."""

    level: str
    argv: tuple[str, ...]
    result: WorkloadResult | None
    wall_ns: int

    def timings(self) -> tuple[Timing, ...]:
        if self.result is not None:
            return self.result.timings
        return (Timing("", self.level, "wall", None, 1, self.wall_ns, self.wall_ns, self.wall_ns),)


def record(words: Sequence[str], options: Options, echo: Echo) -> Recording:
    """Record `words`: a workload's name and its options, or any command line.

    Writes the trace and its sidecar; overwrites neither without `force`. Raises CaptureError or UsageError.
    """
    job = plan_job(words)
    tracer = choose_tracer(options)
    if tracer.nsys is None:
        cupti.python_program(job.command)  # refuses other programs before any of the runs
    traces = plan_traces(job, options)
    try:
        with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
            runs = _run_all(job, traces, tracer, options, Scratch(Path(folder), echo))
    except OSError as error:
        raise CaptureError(
            f"{error.filename or 'recording'}: {error.strerror}; free space and try again"
        ) from None
    return _write_sidecars(job, traces, tracer, runs)


def plan_job(words: Sequence[str]) -> Job:
    """A registered workload where the first word names one, otherwise a command line.

    A single word that is neither raises UnknownNameError, which lists the workloads.
    """
    if not words:
        raise UsageError("nothing to record: name a workload (`tracekit workloads`) or give `-- COMMAND`")
    first = words[0]
    is_workload = first in {workload.name for workload in list_workloads()}
    if not is_workload and first.endswith(".py"):
        return Job(Path(first).stem, (sys.executable, *words), None)
    if not is_workload and (shutil.which(first) or os.sep in first):
        return Job(Path(first).stem, tuple(words), None)
    workload = find_workload(first)
    _require_gpu(first)
    return Job(first, (sys.executable, "-m", workload.module, *words[1:]), workload)


def _require_gpu(name: str) -> None:
    if not visible_gpus() and cuda_version() is None:
        raise CaptureError(f"{name} needs an NVIDIA GPU, and none is visible: run `tracekit doctor`")


def plan_traces(job: Job, options: Options) -> dict[str, Path]:
    """A file a level: `x.sqlite` for the last, `x-graph.sqlite` for a graph level before it.

    Raises CaptureError where a file that would be written exists, UsageError for an unsuitable name.
    """
    trace = options.output or Path(f"{job.name}.sqlite")
    if trace.suffix != ".sqlite":
        raise UsageError(f"{trace}: the trace is an SQLite file, call it {trace.stem}.sqlite")
    last = options.levels[-1]
    traces = {
        level: trace if level == last else trace.with_name(f"{trace.stem}-{level}.sqlite")
        for level in options.levels
    }
    if not trace.absolute().parent.is_dir():
        raise CaptureError(f"{trace.parent}: no such folder; create it first")
    for path in (written for trace in traces.values() for written in _written_beside(trace)):
        if path.exists() and not options.force:
            raise CaptureError(f"{path} exists: choose another --output, or overwrite it with --force")
        # with --force: what is left of an older recording must not pass for a part of this one
        path.unlink(missing_ok=True)
    return traces


def _written_beside(trace: Path) -> tuple[Path, ...]:
    report = nsys.report_path(trace)
    return trace, sidecar_path(trace), Path(f"{report}.nsys-rep"), Path(f"{report}.qdstrm")


@dataclass(frozen=True)
class Tracer:
    """What records: nsys, or CUPTI in the program's process where `nsys` is None."""

    nsys: nsys.Nsys | None

    @property
    def backend(self) -> str:
        return "nsys" if self.nsys else "cupti"


def choose_tracer(options: Options) -> Tracer:
    """The backend asked for, or with `auto` the first that is there. Raises CaptureError, UsageError."""
    if options.backend not in BACKENDS:
        raise UsageError(f"no backend {options.backend!r}: there are {', '.join(BACKENDS)}")
    if options.backend == "cupti":
        if options.nsys_args:
            raise UsageError("--nsys-args has no meaning with --backend cupti")
        return Tracer(None)
    try:
        return Tracer(nsys.find_nsys())
    except CaptureError:
        if options.backend == "nsys" or "CUPTI" not in package_versions():
            raise
    return Tracer(None)


@dataclass(frozen=True)
class Scratch:
    """A folder for result files, and where lines go."""

    folder: Path
    echo: Echo

    def result_file(self, level: str) -> Path:
        return self.folder / f"{level}.json"


def _run_all(
    job: Job, traces: Mapping[str, Path], tracer: Tracer, options: Options, scratch: Scratch
) -> tuple[Run, ...]:
    runs = [_run_untraced(job, tracer, scratch)] if options.untraced else []
    runs += [_run_traced(job, level, traces[level], tracer, options, scratch) for level in options.levels]
    return tuple(runs)


def _run_untraced(job: Job, tracer: Tracer, scratch: Scratch) -> Run:
    command = _command(job, "untraced", scratch)
    scratch.echo(f"untraced: {shown(command)}")
    finished = run_logged(command, scratch.echo, environment=environment_of(job, tracer))
    if finished.returncode:
        raise CaptureError(
            f"{job.name} failed with exit code {finished.returncode}, untraced{end_of_output(finished)}"
        )
    return _finish_run(job, "untraced", command, finished.wall_ns, scratch)


def _run_traced(job: Job, level: str, trace: Path, tracer: Tracer, options: Options, scratch: Scratch) -> Run:
    command = _command(job, level, scratch)
    if tracer.nsys is None:
        scratch.echo(f"{level} level, by CUPTI: {shown(command)}")
        finished = cupti.record(command, level, trace, scratch.echo, environment=environment_of(job, tracer))
        return _finish_run(job, level, command, finished.wall_ns, scratch)
    wanted = nsys.Recording(command, level, _has_capture_range(job, options), options.nsys_args)
    argv = nsys.profile_command(tracer.nsys, wanted, nsys.report_path(trace))
    scratch.echo(f"{level} level: {shown(argv)}")
    recorded = nsys.record(tracer.nsys, wanted, trace, scratch.echo, environment=environment_of(job, tracer))
    if not options.keep_report:
        recorded.report.unlink(missing_ok=True)
    return _finish_run(job, level, argv, recorded.finished.wall_ns, scratch)


def _has_capture_range(job: Job, options: Options) -> bool:
    return options.capture_range or (job.workload is not None and job.workload.capture_range)


def _command(job: Job, level: str, scratch: Scratch) -> tuple[str, ...]:
    if job.workload is None:
        return job.command
    interpreter, flag, module, *own = job.command
    # before the user's own options, which then win
    extra = job.workload.traced_arguments if level != "untraced" else ()
    return (interpreter, flag, module, *extra, *own, "--result", str(scratch.result_file(level)))


def _finish_run(job: Job, level: str, argv: Sequence[str], wall_ns: int, scratch: Scratch) -> Run:
    result = read_workload_result(scratch.result_file(level), level) if job.workload else None
    return Run(level, shown_words(argv), result, wall_ns)


def environment_of(job: Job, tracer: Tracer) -> dict[str, str] | None:
    """The environment of a run, None for the user's own; a child that needs this package must find it.

    In a checkout its folder goes in front of PYTHONPATH. An installed package is found without, and its
    folder would put all its neighbours before those of another interpreter.
    """
    folder = Path(__file__).resolve().parents[2]
    needs_package = job.workload is not None or tracer.nsys is None
    if not needs_package or folder.name in ("site-packages", "dist-packages"):
        return None
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def shown(argv: Sequence[str]) -> str:
    """A command line as a user would type it."""
    return shlex.join(shown_words(argv))


def shown_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Its words, with the folders of absolute paths left out: they say where somebody keeps their files."""
    return tuple(Path(word).name if Path(word).is_absolute() else word for word in argv)


def _write_sidecars(job: Job, traces: Mapping[str, Path], tracer: Tracer, runs: Sequence[Run]) -> Recording:
    sidecar = _sidecar(job, tracer, runs)
    for level, trace in traces.items():
        write_sidecar(replace(sidecar, level=level, tasks=_tasks(runs, level)), sidecar_path(trace))
    *earlier, last = traces
    return Recording(
        trace=traces[last],
        graph_trace=traces[earlier[0]] if earlier else None,
        sidecar_file=sidecar_path(traces[last]),
        sidecar=replace(sidecar, level=last, tasks=_tasks(runs, last)),
    )


def _sidecar(job: Job, tracer: Tracer, runs: Sequence[Run]) -> Sidecar:
    return Sidecar(
        workload=job.workload.name if job.workload else None,
        backend=tracer.backend,
        level=runs[-1].level,
        recorded=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commands=tuple(Command(run.level, run.argv) for run in runs),
        versions=versions(tracer),
        machine=describe_machine(runs),
        timings=tuple(timing for run in runs for timing in run.timings()),
        stamps=_stamps(runs),
    )


def _stamps(runs: Sequence[Run]) -> tuple[Stamps, ...]:
    untraced = [run.result for run in runs if run.level == "untraced" and run.result]
    return untraced[0].stamps if untraced else ()


def _tasks(runs: Sequence[Run], level: str) -> tuple[Mapping[str, Any], ...]:
    """What the traced run recorded inside its kernels: only that fits the trace's clock."""
    traced = [run.result for run in runs if run.level == level and run.result]
    return tuple(traced[0].facts.get("tasks", ())) if traced else ()


def versions(tracer: Tracer) -> dict[str, str]:
    """The versions of everything that took part."""
    found = package_versions()
    if tracer.nsys and (version := nsys.nsys_version(tracer.nsys)):
        found["nsys"] = version
    try:
        found["tracekit"] = importlib.metadata.version("tracekit-gpu")
    except importlib.metadata.PackageNotFoundError:
        found["tracekit"] = "checkout"
    return found


def describe_machine(runs: Sequence[Run]) -> Machine:
    """GPU, driver, CUDA, and the clocks that the runs saw in their own kernels, else nvidia-smi's now."""
    gpus = visible_gpus()
    gpu = gpus[0] if gpus else None
    results = [run.result for run in runs if run.result]
    clocks = [float(clock) for result in results for clock in result.facts.get("sm_clock_mhz", ())]
    if not clocks and gpu and gpu.sm_clock_mhz:
        clocks = [gpu.sm_clock_mhz]
    return Machine(
        gpu=gpu.name if gpu else next((str(result.gpu["name"]) for result in results), None),
        compute_capability=gpu.compute_capability if gpu else None,
        driver=gpu.driver if gpu else None,
        cuda=cuda_version(),
        sm_clock_mhz=tuple(clocks),
    )
