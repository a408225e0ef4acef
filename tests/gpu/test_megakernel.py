"""The megakernel on a GPU: right in every variant, with delays, under a watchdog; its records make sense."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from workloads import gpu as gpus
from workloads.errors import WorkloadError
from workloads.megakernel.checker import Grid
from workloads.megakernel.gpu import (
    NOTHING_WITHHELD,
    Build,
    Limits,
    Megakernel,
    Poll,
    Prefetch,
    Schedule,
    Signal,
    StoppedError,
)
from workloads.megakernel.packing import pack
from workloads.megakernel.table import Counters, Dependency, Deps, Table, chain_table
from workloads.megakernel.workload import (
    Options,
    Setting,
    build_of,
    check,
    load,
    prepare,
    record_mode,
    run_chaos,
)

pytestmark = pytest.mark.gpu
SMALL = Options(layers=20, size=4096, blocks=16, timeout_ms=200)


def setting_of(options: Options) -> Setting:
    try:
        gpu = gpus.open_gpu()
    except WorkloadError as error:
        pytest.skip(str(error))
    return prepare(gpu, gpus.import_cupy().cuda.Stream(non_blocking=True), options)


def run_once(setting: Setting, build: Build, *, checked: bool = True) -> Any:
    kernel = load(setting, build, checked=checked)
    kernel.launch(setting.stream)
    return kernel.output(setting.options.layers, setting.stream)


@pytest.mark.parametrize(
    ("prefetch", "schedule", "poll", "rotate"), list(itertools.product(Prefetch, Schedule, Poll, (0, 3)))
)
@pytest.mark.parametrize("deps", Deps)
def test_every_variant_is_numpys(
    deps: Deps, prefetch: Prefetch, schedule: Schedule, poll: Poll, rotate: int
) -> None:
    options = replace(SMALL, deps=deps, rotate=rotate, schedule=schedule, poll=poll, workers=11)
    setting = setting_of(options)

    check("output", run_once(setting, build_of(options, prefetch)), setting.expected)


LOCKSTEP = [signal for signal in Signal if signal is not Signal.COUNTER]


def without_table(signal: Signal, **changes: Any) -> Options:
    deps = Deps.BLOCK if signal is Signal.DATA else Deps.LAYER
    return replace(SMALL, signal=signal, deps=deps, **changes)


@pytest.mark.parametrize("rotate", [0, 3, 15])
@pytest.mark.parametrize("vector", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [Prefetch.NONE, Prefetch.WEIGHTS])
@pytest.mark.parametrize("signal", LOCKSTEP)
def test_every_signal_is_numpys(signal: Signal, prefetch: Prefetch, vector: int, rotate: int) -> None:
    options = without_table(signal, vector=vector, rotate=rotate)
    setting = setting_of(options)

    check("output", run_once(setting, build_of(options, prefetch)), setting.expected)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
@pytest.mark.parametrize("signal", LOCKSTEP)
def test_few_layers_and_many_runs_without_clearing(signal: Signal, layers: int) -> None:
    setting = setting_of(without_table(signal, layers=layers, rotate=1))
    kernel = load(setting, build_of(setting.options, Prefetch.WEIGHTS))
    for _ in range(50):
        kernel.launch(setting.stream)

    check("output", kernel.output(layers, setting.stream), setting.expected)


@pytest.mark.parametrize("blocks", [1, 2, 8, 16])
@pytest.mark.parametrize("signal", [Signal.CLUSTER, Signal.PUSH])
def test_clusters_of_any_size(signal: Signal, blocks: int) -> None:
    setting = setting_of(without_table(signal, size=1024 * blocks, blocks=blocks, rotate=1))

    check("output", run_once(setting, build_of(setting.options, Prefetch.WEIGHTS)), setting.expected)


@pytest.mark.parametrize("signal", LOCKSTEP)
def test_random_delays_change_no_signal(signal: Signal) -> None:
    run_chaos(setting_of(without_table(signal, rotate=1, chaos=100)), Prefetch.WEIGHTS)


@pytest.mark.parametrize(
    "signal", [s for s in LOCKSTEP if s is not Signal.CLUSTER]
)  # its barrier is hardware
def test_a_signal_that_never_comes_is_stopped_by_the_watchdog(signal: Signal) -> None:
    setting = setting_of(without_table(signal, rotate=1))
    kernel = load(setting, build_of(setting.options, Prefetch.WEIGHTS))
    kernel.withheld = 7 * SMALL.blocks + 5  # block 5 does its part of layer 7 and tells nobody
    kernel.launch(setting.stream)

    with pytest.raises(StoppedError, match=r"block \d+ waited longer than 200 ms at instruction \d+ for"):
        kernel.output(SMALL.layers, setting.stream)

    kernel.withheld = NOTHING_WITHHELD
    kernel.poison(setting.stream)
    kernel.launch(setting.stream)
    check("output", kernel.output(SMALL.layers, setting.stream), setting.expected)


@pytest.mark.parametrize("signal", LOCKSTEP)
def test_records_without_a_table_are_complete_and_in_order(signal: Signal) -> None:
    setting = setting_of(without_table(signal, rotate=1, forwards=2, repeats=1))
    _, document = record_mode(setting, Prefetch.WEIGHTS)
    columns = document["tasks"]

    assert sorted(columns["instruction"]) == list(range(len(setting.table)))
    for before, after in itertools.pairwise(("fetch_ns", "wait_ns", "execute_ns", "end_ns")):
        assert (np.array(columns[before]) <= np.array(columns[after])).all()
    assert_waits_end_after_their_signals(setting.table, document)


@pytest.mark.parametrize("vector", [1, 2, 4])
def test_more_floats_a_thread(vector: int) -> None:
    options = replace(SMALL, vector=vector, blocks=8, counters=Counters.BLOCK, counter_bytes=4)
    setting = setting_of(options)

    check("output", run_once(setting, build_of(options, Prefetch.WEIGHTS)), setting.expected)


def test_more_than_a_warp_of_dependencies() -> None:
    options = replace(SMALL, size=8192, blocks=64, counters=Counters.BLOCK, rotate=1)
    setting = setting_of(options)

    check("output", run_once(setting, build_of(options, Prefetch.WEIGHTS)), setting.expected)


@pytest.mark.parametrize("workers", [1, 7, 16, 32])
def test_any_number_of_workers_and_skipped_waits(workers: int) -> None:
    options = replace(SMALL, deps=Deps.BLOCK, skip_local=True, workers=workers)
    setting = setting_of(options)

    check("output", run_once(setting, build_of(options, Prefetch.WEIGHTS)), setting.expected)


def test_runs_follow_each_other_without_clearing_the_counters() -> None:
    setting = setting_of(replace(SMALL, schedule=Schedule.QUEUE))
    kernel = load(setting, build_of(setting.options, Prefetch.WEIGHTS))
    for _ in range(1100):  # more than there are queue heads
        kernel.launch(setting.stream)

    check("output", kernel.output(setting.options.layers, setting.stream), setting.expected)


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("deps", Deps)
def test_random_delays_change_nothing(deps: Deps, schedule: Schedule) -> None:
    options = replace(SMALL, deps=deps, rotate=1, schedule=schedule, chaos=100, workers=13)

    run_chaos(setting_of(options), Prefetch.WEIGHTS)


def test_a_cycle_is_stopped_by_the_watchdog_and_the_next_run_is_right() -> None:
    setting = setting_of(SMALL)
    good = setting.table
    broken = replace(setting, table=with_cycle(good, 5, 9))
    kernel = load(broken, build_of(SMALL, Prefetch.WEIGHTS), checked=False)
    kernel.launch(setting.stream)

    with pytest.raises(
        StoppedError, match=r"block \d+ waited longer than 200 ms at instruction \d+ for counter"
    ):
        kernel.output(SMALL.layers, setting.stream)

    kernel.load(pack(good), good.counters, setting.numbers)
    kernel.launch(setting.stream)
    check("output", kernel.output(SMALL.layers, setting.stream), setting.expected)


def with_cycle(table: Table, first: int, second: int) -> Table:
    """`first` waits for what `second` signals, and the other way round, on two new counters."""
    instructions = list(table.instructions)
    counters = table.counters
    instructions[first] = replace(
        instructions[first], dependencies=(Dependency(counters + 1, 1),), signals=counters
    )
    instructions[second] = replace(
        instructions[second], dependencies=(Dependency(counters, 1),), signals=counters + 1
    )
    return Table(tuple(instructions), counters + 2)


def test_more_blocks_than_fit_are_not_launched() -> None:
    setting = setting_of(SMALL)
    kernel = Megakernel(setting.gpu, build_of(SMALL, Prefetch.NONE), Limits(), 100_000)
    assert kernel.grid.workers > kernel.grid.resident >= Grid(1, setting.gpu.multiprocessors).resident
    kernel.load(pack(chain_table(SMALL.shape)), setting.table.counters, setting.numbers)

    with pytest.raises(WorkloadError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        kernel.launch(setting.stream)


@pytest.mark.parametrize("prefetch", Prefetch)
def test_records_are_complete_and_in_order(prefetch: Prefetch) -> None:
    setting = setting_of(replace(SMALL, forwards=2, repeats=1))
    _, document = record_mode(setting, prefetch)
    tasks = {
        name: np.array(document["tasks"][name]) for name in ("fetch_ns", "wait_ns", "execute_ns", "end_ns")
    }

    assert sorted(document["tasks"]["instruction"]) == list(range(len(setting.table)))
    assert document["dropped"] == 0
    assert (tasks["fetch_ns"] <= tasks["wait_ns"]).all()
    assert (tasks["wait_ns"] <= tasks["execute_ns"]).all()
    assert (tasks["execute_ns"] <= tasks["end_ns"]).all()
    assert (tasks["fetch_ns"] >= 0).all()
    assert tasks["end_ns"].max() <= max(document["workers"]["ended_ns"])
    assert_waits_end_after_their_signals(setting.table, document)


def assert_waits_end_after_their_signals(table: Table, document: dict[str, Any]) -> None:
    """No task executes before all that it waits for have begun to: what any clock error must leave true."""
    columns = document["tasks"]
    executed = dict(zip(columns["instruction"], columns["execute_ns"], strict=True))
    producers = table.producers()
    for number, instruction in enumerate(table.instructions):
        for dependency in instruction.dependencies:
            for producer in producers[dependency.counter]:
                assert executed[number] >= executed[producer]


def test_a_full_buffer_drops_records_and_counts_them() -> None:
    setting = setting_of(SMALL)
    kernel = Megakernel(
        setting.gpu, build_of(SMALL, Prefetch.NONE, timeline=True), Limits(records=3), setting.workers
    )
    kernel.load(pack(setting.table), setting.table.counters, setting.numbers)
    kernel.poison(setting.stream)
    kernel.launch(setting.stream)
    check("output", kernel.output(SMALL.layers, setting.stream), setting.expected)
    records, blocks = kernel.records()

    assert int(records[:, :, 5].sum()) == 3 * setting.workers
    assert int(blocks[:, 3].sum()) == len(setting.table) - 3 * setting.workers
