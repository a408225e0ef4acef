"""The records of the kernel's own timeline, as plain columns that a sidecar can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.megakernel.table import Table

FORMAT = "tracekit.tasks/1"
RECORD_WORDS = 6  # fetch, wait, execute, end, instruction, written
BLOCK_WORDS = 4  # started, ended, multiprocessor, dropped
Words = NDArray[np.uint64]


def tasks_document(
    kernel: str, range_name: str, table: Table, records: Words, blocks: Words
) -> dict[str, Any]:
    """The records of one launch. Times count from `origin_ns` of %globaltimer, the start of its first block.

    `records` is (blocks, capacity, RECORD_WORDS), `blocks` (blocks, BLOCK_WORDS). Columns have a value a
    task, in order of `execute_ns`; `waits` are pairs (row of the task, counter).
    """
    block, slot = np.nonzero(records[:, :, 5])
    rows = records[block, slot]
    order = np.argsort(rows[:, 2], kind="stable")
    block, rows = block[order], rows[order]
    origin_ns = int(blocks[:, 0].min())
    times = rows[:, :4].astype(np.int64) - origin_ns
    numbers = rows[:, 4].astype(np.int64)
    return {
        "format": FORMAT,
        "kernel": kernel,
        "range": range_name,
        "clock": "globaltimer",
        "tick_ns": smallest_step_ns(times),
        "origin_ns": origin_ns,
        "dropped": int(blocks[:, 3].sum()),
        "workers": {
            "started_ns": _ints(blocks[:, 0].astype(np.int64) - origin_ns),
            "ended_ns": _ints(blocks[:, 1].astype(np.int64) - origin_ns),
            "multiprocessor": _ints(blocks[:, 2]),
        },
        "tasks": {
            "worker": _ints(block),
            "instruction": _ints(numbers),
            **dict(zip(("fetch_ns", "wait_ns", "execute_ns", "end_ns"), map(_ints, times.T), strict=True)),
            **_table_columns(table, numbers.tolist()),
        },
    }


def smallest_step_ns(times: NDArray[np.int64]) -> int:
    """The granularity of the clock: the greatest common divisor of all differences, 0 for equal times."""
    return int(np.gcd.reduce(np.diff(np.unique(times)))) if times.size else 0


def _table_columns(table: Table, numbers: list[int]) -> dict[str, Any]:
    chosen = [table.instructions[number] for number in numbers]
    return {
        "name": [instruction.name for instruction in chosen],
        "signals": [-1 if i.signals is None else i.signals for i in chosen],
        "waits": [[row, d.counter] for row, i in enumerate(chosen) for d in i.dependencies],
    }


def _ints(values: NDArray[Any]) -> list[int]:
    return [int(value) for value in values]
