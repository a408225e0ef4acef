"""Executes a table in NumPy, in any order that its dependencies allow: what the GPU must agree with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from workloads.megakernel.table import Instruction, LayerOperands, Opcode, Table, TableError
from workloads.pdl_chain import Numbers

FloatArray = NDArray[np.float32]
Choose = Callable[[Sequence[int]], int]


def plain_chain(numbers: Numbers, rotate_elements: int = 0) -> FloatArray:
    """The chain a layer after the other; each reads its input `rotate_elements` to the right, cyclically.

    Products are exact in float64, so that each layer rounds as one fused step does (but for rare ties).
    """
    values = numbers.start
    for weight, bias in zip(numbers.weights, numbers.biases, strict=True):
        values = _scale(np.roll(values, -rotate_elements), weight, bias)
    return values


def run_table(table: Table, numbers: Numbers, choose: Choose | None = None) -> FloatArray:
    """Execute the table, `choose` picking among the instructions that may run; the default is the first.

    Returns the buffer that the last instruction wrote. Raises TableError where nothing may run any more.
    """
    buffers = (np.full_like(numbers.start, np.nan), np.full_like(numbers.start, np.nan))
    counters = [0] * table.counters
    left = list(range(len(table)))
    while left:
        ready = [number for number in left if _may_run(table.instructions[number], counters)]
        if not ready:
            raise TableError(f"deadlock: instruction {left[0]} and {len(left) - 1} more can never run")
        number = choose(ready) if choose else ready[0]
        _execute(table.instructions[number], numbers, buffers)
        signals = table.instructions[number].signals
        if signals is not None:
            counters[signals] += 1
        left.remove(number)
    return buffers[table.instructions[-1].operands.layer % 2]


def random_choice(seed: int) -> Choose:
    """A choice that differs from run to run with the seed."""
    return random.Random(seed).choice


def _may_run(instruction: Instruction, counters: Sequence[int]) -> bool:
    return all(counters[d.counter] >= d.count for d in instruction.dependencies)


def _execute(instruction: Instruction, numbers: Numbers, buffers: tuple[FloatArray, FloatArray]) -> None:
    if instruction.opcode is not Opcode.LAYER:
        raise TableError(f"opcode {instruction.opcode.name} cannot be executed: only LAYER can")
    _run_layer(instruction.operands, numbers, buffers)


def _run_layer(at: LayerOperands, numbers: Numbers, buffers: tuple[FloatArray, FloatArray]) -> None:
    source = buffers[(at.layer - 1) % 2] if at.layer else numbers.start
    here = slice(at.first, at.first + at.elements)
    values = source[at.input_first : at.input_first + at.elements]
    buffers[at.layer % 2][here] = _scale(
        values, numbers.weights[at.layer, here], numbers.biases[at.layer, here]
    )


def _scale(values: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    exact = np.maximum(values, 0).astype(np.float64) * weight + bias
    return exact.astype(np.float32)
