"""Runs the chain as a megakernel: checked, timed, with chaos, with its timeline."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from workloads import gpu as gpus
from workloads.checking import require_close
from workloads.errors import exit_on_error
from workloads.gpu import Gpu
from workloads.megakernel.checker import check_table
from workloads.megakernel.gpu import (
    LINE_BYTES,
    Build,
    Limits,
    Megakernel,
    Poll,
    Prefetch,
    Schedule,
    Signal,
    check_build,
    check_lockstep,
)
from workloads.megakernel.packing import pack
from workloads.megakernel.reference import plain_chain
from workloads.megakernel.table import (
    ChainShape,
    Counters,
    Deps,
    Table,
    TableError,
    chain_table,
    drop_local_dependencies,
)
from workloads.megakernel.tasks import tasks_document
from workloads.pdl_chain import Numbers, make_numbers, require_sane
from workloads.pdl_chain import Options as ChainOptions
from workloads.phases import Plan, Timing, phase, time_phase
from workloads.result import Result, write_result

SHOWS = "the PDL chain as one persistent kernel: no kernel boundary, and what waits, fetches and signals cost"
TRACED_ARGUMENTS = ("--repeats", "1")
SPIN_UP_MS = 200
FloatArray = NDArray[np.float32]
MODE_NAMES = {
    Prefetch.NONE: "megakernel",
    Prefetch.INSTRUCTION: "megakernel+instruction",
    Prefetch.WEIGHTS: "megakernel+weights",
}


@dataclass(frozen=True)
class Options:
    """`workers` 0: one a block of a layer, at most one a multiprocessor. `chaos` repeats with random delays.

    `signal` other than `counter` runs the same work without a table: `data` waits for what it reads (`deps`
    block), the others for a layer. `skip_local` drops the waits that a worker's own order fulfils: only for
    `deps` block, by stride.
    """

    layers: int = 200
    size: int = 16_384
    blocks: int = 64
    vector: int = 1
    deps: Deps = Deps.LAYER
    counters: Counters = Counters.LAYER
    rotate: int = 0
    skip_local: bool = False
    prefetch: tuple[Prefetch, ...] = tuple(Prefetch)
    schedule: Schedule = Schedule.STRIDE
    poll: Poll = Poll.ONE
    signal: Signal = Signal.COUNTER
    workers: int = 0
    counter_bytes: int = LINE_BYTES
    timeline: bool = False
    chaos: int = 0
    timeout_ms: int = 1000
    forwards: int = 20
    repeats: int = 5

    @property
    def shape(self) -> ChainShape:
        """The chain that the table is made from."""
        return ChainShape(self.layers, self.size, self.blocks, self.deps, self.counters, self.rotate)

    @property
    def rotate_elements(self) -> int:
        """How far to the right of an element its input lies."""
        return self.rotate * (self.size // self.blocks)


@dataclass(frozen=True)
class Setting:
    """What the phases of a run share. `expected` is NumPy's output."""

    gpu: Gpu
    stream: Any
    options: Options
    table: Table
    numbers: Numbers
    expected: FloatArray
    workers: int


def run(options: Options) -> Result:
    """Check and time each prefetch mode, then what else was asked for; print a line each."""
    gpu = gpus.open_gpu()
    stream = gpus.import_cupy().cuda.Stream(non_blocking=True)
    setting = prepare(gpu, stream, options)
    clock_mhz = gpus.clock_mhz(gpu, stream, SPIN_UP_MS)
    timings, documents, costs = [], [], {}
    for prefetch in options.prefetch:
        mode = mode_name(options, prefetch)
        timings.append(time_mode(setting, prefetch))
        print(result_line(timings[-1]))
        if options.timeline:
            traced, document = record_mode(setting, prefetch)
            timings.append(traced)
            documents.append(document)
            costs[mode] = timeline_cost(timings[-2], traced)
            print(f"{mode:<26} its timeline adds {costs[mode]:.1%}, {document['dropped']} records dropped")
        if options.chaos:
            run_chaos(setting, prefetch)
            print(f"{mode:<26} {options.chaos} runs with random delays   PASS")
    facts = {
        "sm_clock_mhz": [clock_mhz, gpus.clock_mhz(gpu, stream, 5)],
        "workers": setting.workers,
        "layer_bytes": 16 * options.size,
        "timeline_cost": costs,
        "tasks": documents,
    }
    return Result("megakernel", dataclasses.asdict(options), gpu, tuple(timings), facts=facts)


def mode_name(options: Options, prefetch: Prefetch) -> str:
    """`megakernel+weights`, with the signal where it is no counter: the name of the phase and its range."""
    name = MODE_NAMES[prefetch]
    return name if options.signal is Signal.COUNTER else f"{name}+{options.signal}"


def check(mode: str, got: FloatArray, expected: FloatArray) -> None:
    """Raise WrongResultError where the mode's output is not NumPy's, within float32 rounding."""
    require_close(mode, got, expected, relative=1e-5, absolute=1e-6)


def prepare(gpu: Gpu, stream: Any, options: Options) -> Setting:
    """The table, the numbers and NumPy's answer. Raises TableError for options that contradict each other."""
    workers = options.workers or min(options.blocks, gpu.multiprocessors)
    table = chain_table(options.shape)
    _require_fitting_deps(options)
    if options.skip_local:
        if options.schedule is not Schedule.STRIDE:
            raise TableError("--skip-local needs --schedule stride: from a queue nobody knows who runs what")
        table = drop_local_dependencies(table, workers)
    numbers = make_numbers(ChainOptions(layers=options.layers, size=options.size))
    expected = plain_chain(numbers, options.rotate_elements)
    return Setting(gpu, stream, options, table, numbers, expected, workers)


def _require_fitting_deps(options: Options) -> None:
    kept = {Signal.COUNTER: options.deps, Signal.DATA: Deps.BLOCK}.get(options.signal, Deps.LAYER)
    if options.deps is not kept or (options.skip_local and options.signal is not Signal.COUNTER):
        raise TableError(f"--signal {options.signal} keeps the dependencies of --deps {kept}, all of them")


def load(setting: Setting, build: Build, *, checked: bool = True) -> Megakernel:
    """The kernel with its table on the GPU. `checked` False lets a table through that the checker refuses."""
    options = setting.options
    check_build(build, options.size // options.blocks)
    check_lockstep(build, options.blocks, setting.workers)
    limits = Limits(timeout_ns=options.timeout_ms * 1_000_000)
    kernel = Megakernel(setting.gpu, build, limits, setting.workers)
    if checked:
        check_table(setting.table, kernel.grid)
    kernel.load(pack(setting.table), setting.table.counters, setting.numbers, options.rotate)
    kernel.poison(setting.stream)
    return kernel


def build_of(options: Options, prefetch: Prefetch, *, timeline: bool = False, chaos: bool = False) -> Build:
    """What the options ask to be compiled."""
    return Build(
        block=options.size // options.blocks // options.vector,
        vector=options.vector,
        prefetch=prefetch,
        schedule=options.schedule,
        poll=options.poll,
        signal=options.signal,
        counter_bytes=options.counter_bytes,
        timeline=timeline,
        chaos=chaos,
    )


def time_mode(setting: Setting, prefetch: Prefetch) -> Timing:
    """Time one mode and check its output."""
    kernel = load(setting, build_of(setting.options, prefetch))
    return _time(setting, kernel, mode_name(setting.options, prefetch))


def record_mode(setting: Setting, prefetch: Prefetch) -> tuple[Timing, dict[str, Any]]:
    """Time one mode with the timeline on; its records are those of one more run, in range `MODE:tasks`."""
    mode = mode_name(setting.options, prefetch)
    kernel = load(setting, build_of(setting.options, prefetch, timeline=True))
    timing = _time(setting, kernel, f"{mode}:timeline")
    kernel.poison(setting.stream)
    with phase(f"{mode}:tasks"):
        kernel.launch(setting.stream)
        kernel.output(setting.options.layers, setting.stream)
    return timing, tasks_document(kernel.build.source[1], f"{mode}:tasks", setting.table, *kernel.records())


def timeline_cost(plain: Timing, traced: Timing) -> float:
    """What recording added, as a share of the time without it."""
    return float(np.median(traced.pass_ns) / np.median(plain.pass_ns)) - 1


def run_chaos(setting: Setting, prefetch: Prefetch) -> None:
    """Run with random delays wherever order matters. Raises WrongResultError at the first run that differs.

    The first run is compared with NumPy, every other one bit for bit with the first.
    """
    kernel = load(setting, build_of(setting.options, prefetch, chaos=True))
    first = None
    for seed in range(setting.options.chaos):
        kernel.poison(setting.stream)
        kernel.launch(setting.stream, chaos_seed=seed)
        got = kernel.output(setting.options.layers, setting.stream)
        where = f"{mode_name(setting.options, prefetch)}, chaos seed {seed}"
        check(where, got, setting.expected)
        first = got if first is None else first
        require_close(where, got, first)


def result_line(timing: Timing) -> str:
    """One line in the form of the PDL chain's."""
    forward_us = float(np.median(timing.pass_ns)) / 1e3
    spread_us = (max(timing.pass_ns) - min(timing.pass_ns)) / 1e3
    return (
        f"{timing.mode:<26} {forward_us:8.1f} us per forward, {forward_us / timing.kernels:6.3f} us per layer"
        f"   PASS   (median of {len(timing.pass_ns)}, spread {spread_us:.1f} us)"
    )


def _modes(signal: Signal) -> tuple[Prefetch, ...]:
    """All that make sense: without a table there is no instruction to load ahead."""
    return tuple(p for p in Prefetch if signal is Signal.COUNTER or p is not Prefetch.INSTRUCTION)


def _time(setting: Setting, kernel: Megakernel, mode: str) -> Timing:
    """`kernels` of the timing counts layers, as the PDL chain's does: here they are all in one kernel."""
    options = setting.options
    plan = Plan(options.layers, options.forwards, options.repeats)
    timing = time_phase(mode, lambda: kernel.launch(setting.stream), setting.stream, plan)
    check(mode, kernel.output(options.layers, setting.stream), setting.expected)
    return timing


def main(  # noqa: PLR0913, PLR0917 - a command line
    layers: Annotated[int, typer.Option(help="Layers of the chain.")] = 200,
    size: Annotated[int, typer.Option(help="Floats a layer.")] = 16_384,
    blocks: Annotated[int, typer.Option(help="Instructions a layer.")] = 64,
    vector: Annotated[int, typer.Option(help="Floats a thread: 1, 2 or 4.")] = 1,
    deps: Annotated[
        Deps, typer.Option(help="Wait for the blocks that are needed, or a whole layer.")
    ] = Deps.LAYER,
    counters: Annotated[Counters, typer.Option(help="A counter a layer, or a block.")] = Counters.LAYER,
    rotate: Annotated[int, typer.Option(help="Read what the block so far to the right wrote.")] = 0,
    skip_local: Annotated[
        bool, typer.Option("--skip-local", help="Drop waits that a worker's own order fulfils.")
    ] = False,
    prefetch: Annotated[
        list[Prefetch] | None, typer.Option(help="What is loaded ahead; again for several [default: all].")
    ] = None,
    schedule: Annotated[Schedule, typer.Option(help="Who runs what.")] = Schedule.STRIDE,
    poll: Annotated[Poll, typer.Option(help="Who looks at the counter.")] = Poll.ONE,
    signal: Annotated[Signal, typer.Option(help="How a layer tells the next one.")] = Signal.COUNTER,
    workers: Annotated[int, typer.Option(help="Blocks of the grid; 0: one a block of a layer.")] = 0,
    counter_bytes: Annotated[int, typer.Option(help="From one counter to the next.")] = LINE_BYTES,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Record every instruction, and what that costs.")
    ] = False,
    chaos: Annotated[int, typer.Option(help="Runs with random delays.")] = 0,
    timeout_ms: Annotated[int, typer.Option(help="The watchdog ends a longer wait.")] = 1000,
    forwards: Annotated[int, typer.Option(help="Forwards a timing.")] = 20,
    repeats: Annotated[int, typer.Option(help="Timings a mode.")] = 5,
    result: Annotated[
        Path | None, typer.Option(envvar="TRACEKIT_RESULT", help="Write timings and records here, as JSON.")
    ] = None,
) -> None:
    """The PDL chain as one persistent kernel, checked against NumPy.

    Example: python -m workloads.megakernel --prefetch weights --blocks 16 --vector 4 --timeline
    """

    chosen: dict[str, Any] = dict(locals())
    del chosen["prefetch"], chosen["result"]

    def run_and_write() -> None:
        counts = ("layers", "size", "blocks", "vector", "timeout_ms", "forwards", "repeats")
        require_sane({name.replace("_", "-"): chosen[name] for name in counts}, 1)
        write_result(run(Options(**chosen, prefetch=tuple(prefetch or _modes(signal)))), result)

    exit_on_error(run_and_write)
