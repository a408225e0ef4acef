"""The instruction table: what the chain needs, what the checker refuses, any legal order gives the chain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.megakernel.checker import Grid, check_table
from workloads.megakernel.reference import plain_chain, random_choice, run_table
from workloads.megakernel.table import (
    ChainShape,
    Counters,
    Dependency,
    Deps,
    Instruction,
    LayerOperands,
    Opcode,
    Table,
    TableError,
    chain_table,
    drop_local_dependencies,
)
from workloads.pdl_chain import Options, expected_output, make_numbers

ROOMY = Grid(workers=1, resident=132)


def table_of(*dependencies: tuple[Dependency, ...], counters: int | None = None) -> Table:
    """Instruction i signals counter i."""
    operands = LayerOperands(0, 0, 0, 1)
    instructions = tuple(Instruction(Opcode.LAYER, operands, d, i) for i, d in enumerate(dependencies))
    return Table(instructions, len(instructions) if counters is None else counters)


def on(counter: int, count: int = 1) -> Dependency:
    return Dependency(counter, count)


shapes = st.builds(
    ChainShape,
    layers=st.integers(1, 6),
    size=st.just(24),
    blocks=st.sampled_from([1, 2, 3, 4, 6]),
    deps=st.sampled_from(Deps),
    counters=st.sampled_from(Counters),
    rotate=st.integers(0, 5),
)


def test_a_layer_waits_for_all_blocks_of_the_layer_before() -> None:
    table = chain_table(ChainShape(layers=2, size=8, blocks=2, deps=Deps.LAYER))

    assert [i.dependencies for i in table.instructions] == [(), (), (on(0, 2),), (on(0, 2),)]
    assert [i.signals for i in table.instructions] == [0, 0, 1, 1]
    assert table.instructions[3].operands == LayerOperands(layer=1, first=4, input_first=4, elements=4)


def test_a_block_waits_for_its_own_block_only() -> None:
    table = chain_table(ChainShape(layers=2, size=8, blocks=2, deps=Deps.BLOCK))

    assert [i.dependencies for i in table.instructions] == [(), (), (on(0),), (on(1),)]
    assert [i.signals for i in table.instructions] == [0, 1, 2, 3]


def test_a_rotated_block_waits_for_its_writer_and_for_the_reader_of_what_it_overwrites() -> None:
    table = chain_table(ChainShape(layers=2, size=16, blocks=4, deps=Deps.BLOCK, rotate=1))

    assert table.instructions[4 + 2].dependencies == (on(1), on(3))
    assert table.instructions[4 + 3].operands.input_first == 0


def test_the_handbooks_counters_give_one_wait_an_instruction() -> None:
    table = chain_table(ChainShape(layers=2, size=8, blocks=2, counters=Counters.BLOCK))

    assert table.instructions[2].dependencies == (on(0), on(1))


def test_blocks_that_do_not_divide_the_size_are_refused() -> None:
    with pytest.raises(TableError, match="do not divide into 3 equal blocks"):
        chain_table(ChainShape(size=16, blocks=3))


def test_a_local_wait_is_dropped_where_the_worker_runs_the_producer_itself() -> None:
    table = chain_table(ChainShape(layers=2, size=8, blocks=2, deps=Deps.BLOCK))

    assert [i.dependencies for i in drop_local_dependencies(table, 2).instructions] == [()] * 4
    assert [i.signals for i in drop_local_dependencies(table, 2).instructions] == [None] * 4
    assert [i.dependencies for i in drop_local_dependencies(table, 3).instructions] == [
        (),
        (),
        (on(0),),
        (on(1),),
    ]
    assert [i.signals for i in drop_local_dependencies(table, 3).instructions] == [0, 1, None, None]


# What the checker refuses


def test_exercise_3_a_grid_larger_than_what_can_be_resident() -> None:
    table = chain_table(ChainShape(layers=2, size=8, blocks=2))

    check_table(table, Grid(workers=2, resident=2))
    with pytest.raises(TableError) as refused:
        check_table(table, Grid(workers=2, resident=1))
    assert "a grid of 2 blocks, but only 1 can be resident" in str(refused.value)
    assert "block 0 waits at instruction 2 for counter 0 to reach 2, it stands at 1" in str(refused.value)
    assert "instruction 1 never ran" in str(refused.value)


def test_exercise_3_a_dependency_on_a_greater_number() -> None:
    with pytest.raises(TableError) as refused:
        check_table(table_of((on(1),), ()), ROOMY)
    assert "instruction 0 waits for counter 1 to reach 1, which needs instruction 1" in str(refused.value)
    assert "a worker whose turn is 0 before 1 waits for itself" in str(refused.value)


def test_a_cycle_is_shown() -> None:
    with pytest.raises(TableError, match=r"cycle 1 -> 3 -> 2 -> 1 \(each waits for the next\)"):
        check_table(table_of((), (on(3),), (on(1),), (on(2),)), ROOMY)


def test_an_instruction_that_waits_for_itself_is_a_cycle() -> None:
    with pytest.raises(TableError, match="cycle 0 -> 0"):
        check_table(table_of((on(0),)), ROOMY)


@pytest.mark.parametrize("counter", [2, -1])
def test_a_counter_that_does_not_exist(counter: int) -> None:
    with pytest.raises(TableError, match=f"instruction 1 waits for counter {counter}, which does not exist"):
        check_table(table_of((), (on(counter),)), ROOMY)


def test_a_signal_to_a_counter_that_does_not_exist() -> None:
    with pytest.raises(TableError, match=r"instruction 1 signals counter 1, which does not exist.* 0 to 0"):
        check_table(table_of((), (), counters=1), ROOMY)


def test_a_wait_for_more_than_its_producers_give() -> None:
    with pytest.raises(
        TableError, match="instruction 1 starves: it waits for counter 0 to reach 2, and instruction 0 give"
    ):
        check_table(table_of((), (on(0, 2),)), ROOMY)


def test_a_wait_that_only_later_producers_complete() -> None:
    table = table_of((), (on(0, 2),), ())
    late = replace(table.instructions[2], signals=0)

    with pytest.raises(TableError, match="needs instruction 2"):
        check_table(replace(table, instructions=(*table.instructions[:2], late)), ROOMY)


@given(shapes, st.integers(1, 8))
def test_every_chain_passes(shape: ChainShape, workers: int) -> None:
    table = chain_table(shape)
    check_table(table, Grid(workers, 8))
    check_table(drop_local_dependencies(table, workers), Grid(workers, 8))


# Any legal order


@given(shapes, st.integers(0, 2**32))
@settings(max_examples=60)
def test_any_legal_order_gives_the_chain(shape: ChainShape, seed: int) -> None:
    numbers = make_numbers(Options(layers=shape.layers, size=shape.size))
    expected = plain_chain(numbers, shape.rotate * (shape.size // shape.blocks))

    got = run_table(chain_table(shape), numbers, random_choice(seed))

    np.testing.assert_array_equal(got, expected)


def test_the_plain_chain_is_the_pdl_chains() -> None:
    numbers = make_numbers(Options(layers=5, size=64))

    np.testing.assert_array_equal(plain_chain(numbers), expected_output(numbers))


def test_without_the_wait_for_the_reader_some_order_is_wrong() -> None:
    """The property above does notice: the dependency that only protects what is overwritten is needed."""
    shape = ChainShape(layers=4, size=24, blocks=6, deps=Deps.BLOCK, rotate=2)
    numbers = make_numbers(Options(layers=shape.layers, size=shape.size))
    table = chain_table(shape)
    unsafe = replace(
        table,
        instructions=tuple(
            replace(i, dependencies=tuple(d for d in i.dependencies if d.counter % 6 == (n + 2) % 6))
            for n, i in enumerate(table.instructions)
        ),
    )
    expected = plain_chain(numbers, shape.rotate * 4)

    results = [run_table(unsafe, numbers, random_choice(seed)) for seed in range(30)]

    assert any(not np.array_equal(result, expected) for result in results)


def test_a_table_that_cannot_go_on_is_an_error() -> None:
    numbers = make_numbers(Options(layers=1, size=1))

    with pytest.raises(TableError, match="deadlock: instruction 0 and 1 more"):
        run_table(table_of((on(1),), (on(0),)), numbers)


def test_a_stop_is_no_work() -> None:
    stop = Instruction(Opcode.STOP, LayerOperands(0, 0, 0, 0), (), 0)

    with pytest.raises(TableError, match="opcode STOP cannot be executed"):
        run_table(Table((stop,), 1), make_numbers(Options(layers=1, size=1)))
