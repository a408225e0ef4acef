"""Reads what the assembler made: instructions with the scoreboard each sets, and those each waits for.

The layout of the control bits is not documented; it is the one that maxas and its successors found: in the
upper 64-bit word, from bit 46, three bits for the scoreboard that a result sets (7: none), and from bit 52 a
mask of those waited for. Scoreboards count: a wait is for all loads that set one, the newest too.
"""

from __future__ import annotations

import itertools
import re
import shutil
import site
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

LINE = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);?\s+/\* 0x[0-9a-f]{16} \*/")
UPPER = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")


@dataclass(frozen=True)
class Instruction:
    """`sets` is the scoreboard that its result raises, None for none; `waits` are those it waits for."""

    text: str
    sets: int | None
    waits: frozenset[int]


def instructions(cubin: bytes) -> list[Instruction]:
    """Those of all functions, in the order of the file; skips the test where nvdisasm is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [_nvdisasm(), "-c", "-hex", str(file)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = answer.stdout.splitlines()
    pairs = ((LINE.match(line), UPPER.match(after)) for line, after in itertools.pairwise(lines))
    return [_instruction(first[1], int(second[1], 16)) for first, second in pairs if first and second]


def _instruction(text: str, upper: int) -> Instruction:
    sets, mask = upper >> 46 & 7, upper >> 52 & 63
    return Instruction(text, None if sets == 7 else sets, frozenset(b for b in range(6) if mask >> b & 1))


def _nvdisasm() -> str:
    if on_path := shutil.which("nvdisasm"):
        return on_path
    for folder in site.getsitepackages():
        for found in Path(folder).glob("nvidia/cu*/bin/nvdisasm"):
            return str(found)
    pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
