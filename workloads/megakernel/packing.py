"""Lays a table out for the kernel: rows of 32-bit integers, in the order megakernel.cu reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.megakernel.table import Instruction, Opcode, Table

INSTRUCTION = (
    "opcode",
    "signals",
    "first_dependency",
    "dependencies",
    "layer",
    "first",
    "input_first",
    "elements",
)
DEPENDENCY = ("counter", "count", "whole", "unused")
NO_SIGNAL = -1


@dataclass(frozen=True)
class Packed:
    """`program` has a row an instruction and a STOP row last; `dependencies` one a wait, at least one.

    `whole` is what a whole run adds to the counter: run number n waits for n x whole + count, so that
    counters need no clearing between runs.
    """

    program: NDArray[np.int32]
    dependencies: NDArray[np.int32]


def pack(table: Table) -> Packed:
    """The table as the kernel reads it. It is not checked: `checker.check_table` does that."""
    whole = [len(signalled) for signalled in table.producers()]
    rows: list[tuple[int, ...]] = []
    waits: list[tuple[int, int, int, int]] = []
    for instruction in table.instructions:
        rows.append(_row(instruction, len(waits)))
        waits += [(d.counter, d.count, whole[d.counter], 0) for d in instruction.dependencies]
    rows.append((int(Opcode.STOP), NO_SIGNAL, 0, 0, 0, 0, 0, 0))
    return Packed(np.array(rows, dtype=np.int32), np.array(waits or [(0, 0, 0, 0)], dtype=np.int32))


def _row(instruction: Instruction, first_dependency: int) -> tuple[int, ...]:
    at = instruction.operands
    return (
        int(instruction.opcode),
        NO_SIGNAL if instruction.signals is None else instruction.signals,
        first_dependency,
        len(instruction.dependencies),
        at.layer,
        at.first,
        at.input_first,
        at.elements,
    )
