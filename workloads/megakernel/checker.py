"""Refuses tables that could hang: the two conditions of the handbook, and what makes a wait impossible.

Every wait must be met by instructions with smaller numbers, and every block of the grid must be resident.
Then the unfinished instruction with the smallest number can always run, so something always moves on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workloads.megakernel.simulator import Run, simulate
from workloads.megakernel.table import Dependency, Table, TableError


@dataclass(frozen=True)
class Grid:
    """`workers` blocks are launched, `resident` of them fit on the GPU at the same time."""

    workers: int
    resident: int


def check_table(table: Table, grid: Grid) -> None:
    """Raise TableError for the first thing that makes the table unsafe on this grid.

    Refused: a counter that does not exist, a wait for more than its producers give, a wait for an instruction
    with the same or a greater number, a grid that cannot all be resident.
    """
    producers = table.producers()
    for number, instruction in enumerate(table.instructions):
        if instruction.signals is not None and not 0 <= instruction.signals < table.counters:
            raise TableError(f"instruction {number} signals {_missing(table, instruction.signals)}")
        for dependency in instruction.dependencies:
            _check_dependency(table, producers, number, dependency)
    _check_grid(table, grid)


def _check_dependency(table: Table, producers: list[list[int]], number: int, wait: Dependency) -> None:
    if not 0 <= wait.counter < table.counters:
        raise TableError(f"instruction {number} waits for {_missing(table, wait.counter)}")
    givers = producers[wait.counter]
    if len(givers) < wait.count:
        raise TableError(
            f"instruction {number} starves: it waits for counter {wait.counter} to reach {wait.count}, and"
            f" {_spell(givers)} give it {len(givers)}: lower the count or add the missing producers"
        )
    if sum(giver < number for giver in givers) < wait.count:
        raise TableError(_not_earlier(table, producers, number, wait))


def _missing(table: Table, counter: int) -> str:
    return f"counter {counter}, which does not exist: the table has counters 0 to {table.counters - 1}"


def _not_earlier(table: Table, producers: list[list[int]], number: int, wait: Dependency) -> str:
    later = next(giver for giver in producers[wait.counter] if giver >= number)
    cycle = _find_cycle(table, producers, number, later)
    shown = (
        f"cycle {' -> '.join(map(str, cycle))} (each waits for the next)"
        if cycle
        else f"a worker whose turn is {number} before {later} waits for itself"
    )
    return (
        f"instruction {number} waits for counter {wait.counter} to reach {wait.count}, which needs"
        f" instruction {later}, and that number is not smaller: {shown};"
        " order the table so that producers come first"
    )


def _find_cycle(table: Table, producers: list[list[int]], start: int, first: int) -> list[int] | None:
    """The shortest way from `start` over `first` back to `start`, each step a wait; None without one."""
    came_from: dict[int, int] = {first: start}
    queue = [first]
    for number in queue:
        if number == start:
            return _walk_back(came_from, start, first)
        for needed in _needs(table, producers, number):
            if needed not in came_from:
                came_from[needed] = number
                queue.append(needed)
    return None


def _walk_back(came_from: dict[int, int], start: int, first: int) -> list[int]:
    way = [start]
    while way[-1] != first:
        way.append(came_from[way[-1]])
    return [start, *reversed(way)] if start != first else [start, start]


def _needs(table: Table, producers: list[list[int]], number: int) -> Iterator[int]:
    for dependency in table.instructions[number].dependencies:
        if 0 <= dependency.counter < table.counters:
            yield from producers[dependency.counter]


def _check_grid(table: Table, grid: Grid) -> None:
    if grid.workers < 1:
        raise TableError(f"a grid of {grid.workers} blocks runs nothing: launch at least one")
    if grid.workers <= grid.resident:
        return
    run = simulate(table, Run(workers=grid.workers, resident=grid.resident))
    shown = f"; {run.deadlock[0].text}" if run.deadlock else ""
    raise TableError(
        f"a grid of {grid.workers} blocks, but only {grid.resident} can be resident: blocks from"
        f" {grid.resident} on start when another ends, and that one may wait for them{shown}; launch at most"
        f" {grid.resident} blocks"
    )


def _spell(numbers: list[int]) -> str:
    if not numbers:
        return "no instructions"
    shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    return f"instruction{'s' if len(numbers) > 1 else ''} {shown}"
