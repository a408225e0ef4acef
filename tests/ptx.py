"""Reads PTX just far enough to say through which parameter each access of global memory goes, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass

INSTRUCTION = re.compile(r"^(?:@!?%\w+\s+)?([a-z][\w.:]*)\s*(.*?);$")
REGISTER = re.compile(r"%[a-z]+\d+")


@dataclass(frozen=True)
class Step:
    """One instruction of interest: an access of global memory through a parameter, or a griddepcontrol."""

    operation: str
    parameter: int | None = None


def steps(ptx: str, entry: str) -> list[Step]:
    """The global accesses and griddepcontrol instructions of a kernel, in program order."""
    lines = _instructions(ptx, entry)
    origins: dict[str, set[int]] = {}
    for _ in range(3):  # addresses that a loop carries need more than one pass
        for operation, operands in lines:
            _spread(operation, operands, entry, origins)
    return [step for line in lines if (step := _step(*line, origins)) is not None]


def _instructions(ptx: str, entry: str) -> list[tuple[str, str]]:
    body = ptx.split(f".entry {entry}(")[1].split("\n{", 1)[1].split("\n}", 1)[0]
    matches = (INSTRUCTION.match(line.strip()) for line in body.splitlines())
    return [(match[1], match[2]) for match in matches if match]


def _spread(operation: str, operands: str, entry: str, origins: dict[str, set[int]]) -> None:
    registers = REGISTER.findall(operands)
    if operation.startswith("ld.param"):
        found = re.search(rf"{entry}_param_(\d+)", operands)
        if found:
            origins.setdefault(registers[0], set()).add(int(found[1]))
    elif registers and not operation.startswith(("ld.", "st.", "setp")):
        target, *sources = registers
        origins.setdefault(target, set()).update(*(origins.get(source, set()) for source in sources))


def _step(operation: str, operands: str, origins: dict[str, set[int]]) -> Step | None:
    if operation.startswith("griddepcontrol"):
        return Step(operation)
    if not re.match(r"(ld|st|atom|red)\.(\w+\.)*global", operation):
        return None
    address = re.search(r"\[(%\w+)", operands)
    assert address, operands
    (parameter,) = {number for number in origins[address[1]] if number in POINTERS}
    return Step(operation, parameter)


POINTERS = range(0, 5)
