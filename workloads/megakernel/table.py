"""The instruction table: what a megakernel executes, and the counters that order it.

An instruction starts when each of its dependencies holds, and adds one to its counter when its output is
visible. Nothing here knows a GPU: `packing` lays a table out for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from workloads.errors import WorkloadError


class TableError(WorkloadError):
    """A table that must not run; the message names the instruction."""


class Opcode(IntEnum):
    """What an instruction does. STOP ends a worker; a decode step adds its own codes here."""

    STOP = 0
    LAYER = 1


class Deps(StrEnum):
    """What an instruction of the chain waits for: the blocks whose elements it touches, or a whole layer."""

    BLOCK = "block"
    LAYER = "layer"


class Counters(StrEnum):
    """How a layer counts: one counter for all its blocks, or one a block, as the handbook's `done[id]`."""

    LAYER = "layer"
    BLOCK = "block"


@dataclass(frozen=True)
class Dependency:
    """Holds once `counter` has reached `count`."""

    counter: int
    count: int


@dataclass(frozen=True)
class LayerOperands:
    """out[first + i] = relu(in[input_first + i]) * weight + bias, for `elements` values of layer `layer`.

    Layers read and write two buffers in turn: layer n writes buffer n % 2; layer 0 reads the start values.
    """

    layer: int
    first: int
    input_first: int
    elements: int


@dataclass(frozen=True)
class Instruction:
    """`signals` is the counter that the instruction adds one to when it is done; None: nobody waits."""

    opcode: Opcode
    operands: LayerOperands
    dependencies: tuple[Dependency, ...]
    signals: int | None

    @property
    def name(self) -> str:
        """The kind of task, as a report groups it."""
        return self.opcode.name.lower()


@dataclass(frozen=True)
class Table:
    """Instructions by number; `counters` are numbered from 0 and start at 0."""

    instructions: tuple[Instruction, ...]
    counters: int

    def __len__(self) -> int:
        return len(self.instructions)

    def producers(self) -> list[list[int]]:
        """For each counter the instructions that signal it, in order; unknown counters are left out."""
        signalled: list[list[int]] = [[] for _ in range(self.counters)]
        for number, instruction in enumerate(self.instructions):
            counter = instruction.signals
            if counter is not None and 0 <= counter < self.counters:
                signalled[counter].append(number)
        return signalled


@dataclass(frozen=True)
class ChainShape:
    """The PDL chain as instructions: `blocks` of them a layer, numbered layer by layer.

    `rotate` makes a block read the elements that the block `rotate` places to the right wrote, so that the
    data really crosses workers. With 0 every block reads what it wrote itself, as the PDL chain does.
    """

    layers: int = 200
    size: int = 16_384
    blocks: int = 64
    deps: Deps = Deps.LAYER
    counters: Counters = Counters.LAYER
    rotate: int = 0


def chain_table(shape: ChainShape) -> Table:
    """The table of the chain. Raises TableError for a size that the blocks do not divide.

    `deps` block needs a counter a block and takes it, whatever `counters` says.
    """
    if min(shape.layers, shape.size, shape.blocks) < 1 or shape.size % shape.blocks:
        raise TableError(
            f"{shape.layers} layers of {shape.size} floats do not divide into {shape.blocks} equal blocks:"
            " choose --blocks so that it divides --size, and at least one of each"
        )
    instructions = tuple(
        _layer_instruction(shape, layer, block)
        for layer in range(shape.layers)
        for block in range(shape.blocks)
    )
    return Table(instructions, shape.layers * (1 if _counts_layers(shape) else shape.blocks))


def drop_local_dependencies(table: Table, workers: int) -> Table:
    """The table without the waits that a worker's own order fulfils, and without signals for nobody.

    Holds for instructions by stride only: worker w runs w, w + workers, ... in turn.
    """
    producers = table.producers()

    def is_local(dependency: Dependency, number: int) -> bool:
        return all(p < number and p % workers == number % workers for p in producers[dependency.counter])

    kept = [
        tuple(d for d in instruction.dependencies if not is_local(d, number))
        for number, instruction in enumerate(table.instructions)
    ]
    waited = {dependency.counter for dependencies in kept for dependency in dependencies}
    return replace(
        table,
        instructions=tuple(
            replace(i, dependencies=d, signals=i.signals if i.signals in waited else None)
            for i, d in zip(table.instructions, kept, strict=True)
        ),
    )


def _counts_layers(shape: ChainShape) -> bool:
    return shape.deps is Deps.LAYER and shape.counters is Counters.LAYER


def _layer_instruction(shape: ChainShape, layer: int, block: int) -> Instruction:
    elements = shape.size // shape.blocks
    return Instruction(
        Opcode.LAYER,
        LayerOperands(layer, block * elements, (block + shape.rotate) % shape.blocks * elements, elements),
        _chain_dependencies(shape, layer, block) if layer else (),
        layer if _counts_layers(shape) else layer * shape.blocks + block,
    )


def _chain_dependencies(shape: ChainShape, layer: int, block: int) -> tuple[Dependency, ...]:
    if _counts_layers(shape):
        return (Dependency(layer - 1, shape.blocks),)
    return tuple(
        Dependency((layer - 1) * shape.blocks + needed, 1) for needed in _needed_blocks(shape, block)
    )


def _needed_blocks(shape: ChainShape, block: int) -> list[int]:
    if shape.deps is Deps.LAYER:
        return list(range(shape.blocks))
    # the block that wrote what this one reads, and the one that read what this one overwrites: the buffer
    # written here held the previous layer's input
    return sorted({(block + shape.rotate) % shape.blocks, (block - shape.rotate) % shape.blocks})
