"""The simulator on tables small enough to add up in the head, and what holds for all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from workloads.megakernel.checker import Grid, check_table
from workloads.megakernel.simulator import Costs, Run, Simulation, Task, simulate
from workloads.megakernel.table import (
    ChainShape,
    Dependency,
    Instruction,
    LayerOperands,
    Opcode,
    Table,
    TableError,
    chain_table,
)

COSTS = Costs(fetch_ns=10, wait_ns=20, execute_ns=100, signal_ns=5)


def table_of(*dependencies: tuple[Dependency, ...]) -> Table:
    """Instruction i signals counter i."""
    operands = LayerOperands(0, 0, 0, 1)
    instructions = tuple(Instruction(Opcode.LAYER, operands, d, i) for i, d in enumerate(dependencies))
    return Table(instructions, len(instructions))


def on(counter: int) -> Dependency:
    return Dependency(counter, 1)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any table that passes the checker: counters shared by several, waits for any part of those before."""
    count = draw(st.integers(1, 24))
    counters = draw(st.integers(1, count))
    given_so_far = [0] * counters
    instructions = []
    for _ in range(count):
        able = [c for c in range(counters) if given_so_far[c]]
        chosen = draw(st.lists(st.sampled_from(able), max_size=3, unique=True)) if able else []
        waits = tuple(Dependency(c, draw(st.integers(1, given_so_far[c]))) for c in chosen)
        signals = draw(st.integers(0, counters - 1))
        given_so_far[signals] += 1
        instructions.append(Instruction(Opcode.LAYER, LayerOperands(0, 0, 0, 1), waits, signals))
    return Table(tuple(instructions), counters)


costs = st.builds(Costs, *(st.integers(0, 50) for _ in range(4)))
runs = st.builds(
    Run,
    workers=st.integers(1, 10),
    queue=st.booleans(),
    prefetch=st.booleans(),
    costs=costs,
)


def test_one_worker_after_the_other_instruction() -> None:
    done = simulate(table_of((), (on(0),)), Run(1, costs=COSTS))

    assert done.tasks == (
        Task(0, 0, fetch_ns=0, wait_ns=10, execute_ns=10, end_ns=115, released_by=None),
        Task(1, 0, fetch_ns=115, wait_ns=125, execute_ns=145, end_ns=250, released_by=0),
    )
    assert done.makespan_ns == 250
    assert done.critical_path == (0, 1)
    assert done.deadlock == ()


def test_two_workers_the_second_waits_for_the_first() -> None:
    done = simulate(table_of((), (on(0),)), Run(2, costs=COSTS))

    assert done.worker(1) == (Task(1, 1, fetch_ns=0, wait_ns=10, execute_ns=135, end_ns=240, released_by=0),)


def test_prefetch_takes_the_fetch_off_the_path() -> None:
    done = simulate(table_of((), (on(0),)), Run(1, prefetch=True, costs=COSTS))

    assert done.tasks[1] == Task(1, 0, fetch_ns=10, wait_ns=115, execute_ns=135, end_ns=240, released_by=0)


def test_the_critical_path_goes_over_the_slow_side() -> None:
    # worker 0 runs 0 and 2, worker 1 runs 1 and 3; 3 waits for 2
    done = simulate(table_of((), (), (), (on(2),)), Run(2, costs=COSTS))

    assert done.critical_path == (0, 2, 3)


def test_exercise_3_too_many_blocks_deadlock() -> None:
    done = simulate(chain_table(ChainShape(layers=2, size=4, blocks=2)), Run(2, resident=1, costs=COSTS))

    assert [starving.text for starving in done.deadlock] == [
        "block 0 waits at instruction 2 for counter 0 to reach 2, it stands at 1, and instruction 1 never ran"
    ]
    assert [task.instruction for task in done.tasks] == [0]


def test_blocks_beyond_residency_run_where_nothing_waits_for_them() -> None:
    done = simulate(table_of((), (), ()), Run(3, resident=1, costs=COSTS))

    assert done.deadlock == ()
    assert done.makespan_ns == 3 * 115
    assert done.critical_path == (0, 1, 2)


@pytest.mark.parametrize(("workers", "stuck"), [(1, 1), (2, 0)])
def test_exercise_3_a_greater_number_hangs_the_worker_that_runs_both(workers: int, stuck: int) -> None:
    done = simulate(table_of((on(1),), ()), Run(workers, costs=COSTS))

    assert len(done.deadlock) == stuck


def test_a_cycle_deadlocks_on_any_number_of_workers() -> None:
    done = simulate(table_of((on(1),), (on(0),)), Run(2))

    assert [(s.instruction, s.missing) for s in done.deadlock] == [(0, (1,)), (1, (0,))]


def test_a_counter_that_nothing_signals() -> None:
    done = simulate(table_of((on(7),)), Run(1))

    assert done.deadlock[0].text.endswith("it stands at 0, and nothing adds to it")


def test_no_workers_is_an_error() -> None:
    with pytest.raises(TableError, match="at least one must run"):
        simulate(table_of(()), Run(0))


@given(tables(), runs)
@settings(max_examples=300)
def test_a_table_that_passes_the_checker_finishes(table: Table, run: Run) -> None:
    check_table(table, Grid(run.workers, run.workers))

    done = simulate(table, run)

    assert done.deadlock == ()
    assert sorted(task.instruction for task in done.tasks) == list(range(len(table)))
    assert_possible(table, run, done)


@given(tables(), runs, st.integers(1, 9))
def test_a_grid_above_residency_is_reported_or_finishes(table: Table, run: Run, resident: int) -> None:
    assume(resident < run.workers)

    done = simulate(table, Run(run.workers, resident, run.queue, run.prefetch, run.costs))

    assert bool(done.deadlock) == (len(done.tasks) < len(table))


def assert_possible(table: Table, run: Run, done: Simulation) -> None:
    """Parts in order, a worker does one thing at a time, no wait ends too early, the path adds up."""
    for number in range(run.workers):
        own = done.worker(number)
        for before, after in itertools.pairwise(own):
            assert before.end_ns <= after.wait_ns
            assert before.end_ns <= after.execute_ns
    for task in done.tasks:
        assert task.fetch_ns <= task.wait_ns <= task.execute_ns <= task.end_ns
        for dependency in table.instructions[task.instruction].dependencies:
            ended = sum(
                other.end_ns <= task.execute_ns
                for other in done.tasks
                if table.instructions[other.instruction].signals == dependency.counter
            )
            assert ended >= dependency.count
    assert_path(run, done)


def assert_path(run: Run, done: Simulation) -> None:
    by_number = {task.instruction: task for task in done.tasks}
    path = [by_number[number] for number in done.critical_path]
    assert path[-1].end_ns == done.makespan_ns
    for before, after in itertools.pairwise(path):
        assert before.end_ns <= after.execute_ns
        # nothing on the path stands still longer than fetching and seeing the counter take
        assert after.execute_ns - before.end_ns <= run.costs.fetch_ns + run.costs.wait_ns
