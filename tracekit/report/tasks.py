"""The task report as text and as JSON (`tracekit.task-report/1`)."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracekit.analysis.tasks import PathStep, TaskRecords, TaskReport, measure_tasks
from tracekit.report.names import printable
from tracekit.report.timeline_data import InKernel
from tracekit.units import format_ns, format_share

FORMAT = "tracekit.task-report/1"
PARTS = ("fetch", "wait", "execute", "idle")


def tasks_json(reports: Sequence[TaskReport]) -> str:
    """One document for all recorded launches of a trace."""
    return json.dumps({"format": FORMAT, "launches": [tasks_document(r) for r in reports]}, allow_nan=False)


def tasks_document(report: TaskReport) -> dict[str, Any]:
    """One launch as plain data: every field of the report, and the parts summed over its workers."""
    return asdict(report) | {"total_ns": {part: report.total_ns(part) for part in PARTS}}


def inside_kernel(records: TaskRecords) -> InKernel:
    """What the report page draws of one launch: the three parts of each task, and the critical path."""
    first_ns = int(records.workers.started_ns.min())
    marks = (records.fetch_ns, records.wait_ns, records.execute_ns, records.end_ns)
    count, sm = len(records), records.workers.multiprocessor[records.worker]
    row_of = {number: row for row, number in enumerate(records.instruction.tolist())}
    path = [row_of[step.instruction] for step in measure_tasks(records).critical_path]
    return InKernel(
        sm=np.tile(sm, 3),
        kind=np.repeat(np.arange(3, dtype=np.int64), count),
        start_ns=np.concatenate(marks[:3]) - first_ns,
        duration_ns=np.concatenate([b - a for a, b in itertools.pairwise(marks)]),
        critical=2 * count + np.array(path, dtype=np.int64),  # the executions come last
    )


def tasks_text(report: TaskReport, top: int | None = 10, width: int | None = None) -> str:
    """Sentences, a table of kinds, a table of workers (the `top` that wait most), the critical path."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, emoji=False, markup=False)
    for sentence in headline(report):
        console.print(Text(sentence))
    console.print()
    console.print(_kinds(report))
    console.print(_workers(report, top))
    if top is not None and len(report.workers) > top:
        console.print(
            Text(f"{len(report.workers) - top:,} more workers; --top {len(report.workers)} shows all.")
        )
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def headline(report: TaskReport) -> list[str]:
    """What was recorded, where the workers' time went, what the end waited for, how sure the place is."""
    whole = sum(report.total_ns(part) for part in PARTS)
    shares = ", ".join(f"{part} {format_share(report.total_ns(part), whole)}" for part in PARTS)
    sentences = [
        f"{printable(report.kernel)} ({printable(report.range_name)}): {report.tasks:,} tasks on"
        f" {len(report.workers)} workers in {format_ns(report.span_ns)}.",
        f"Of the workers' time: {shares}.",
        _path_sentence(report),
        _alignment_sentence(report),
    ]
    if report.dropped:
        sentences.append(
            f"{report.dropped:,} more tasks were dropped for want of room: the figures are of the others."
        )
    return sentences


def _path_sentence(report: TaskReport) -> str:
    path = report.critical_path
    execute_ns = sum(step.execute_ns for step in path)
    released_ns = sum(step.released_ns for step in path)
    hops = sum(step.by == "dependency" for step in path)
    return (
        f"The critical path has {len(path):,} tasks, {hops:,} released by another task: executing"
        f" {format_ns(execute_ns)}, from one to the next {format_ns(released_ns)}"
        f" ({_span_of(path)})."
    )


def _span_of(path: Sequence[PathStep]) -> str:
    changes = sum(before.worker != after.worker for before, after in itertools.pairwise(path))
    return f"it changes workers {changes:,} times"


def _alignment_sentence(report: TaskReport) -> str:
    if report.alignment is None:
        return f"Times are on the GPU's own clock (tick {report.tick_ns} ns), not aligned with the trace."
    how = "give or take" if report.alignment.fits else "and misses the kernel by"
    return (
        f"Aligned with the trace by the kernel's start and end, {how}"
        f" {format_ns(report.alignment.residual_ns)} (the GPU clock's tick is {report.tick_ns} ns)."
    )


def _kinds(report: TaskReport) -> Table:
    table = Table("task", title="By kind of task", title_justify="left")
    for heading in ("tasks", "wait median", "p90", "execute median", "p90"):
        table.add_column(heading, justify="right")
    for kind in report.kinds:
        table.add_row(
            Text(printable(kind.name)),
            f"{kind.tasks:,}",
            *(format_ns(v) for v in (kind.wait_ns.median, kind.wait_ns.p90)),
            *(format_ns(v) for v in (kind.execute_ns.median, kind.execute_ns.p90)),
        )
    return table


def _workers(report: TaskReport, top: int | None) -> Table:
    table = Table(title="Workers, those that wait most first", title_justify="left")
    for heading in ("worker", "SM", "tasks", *PARTS):
        table.add_column(heading, justify="right")
    for worker in sorted(report.workers, key=lambda worker: -worker.wait_ns)[:top]:
        parts = [getattr(worker, f"{part}_ns") for part in PARTS]
        shares = [f"{format_ns(part)} ({format_share(part, report.span_ns)})" for part in parts]
        table.add_row(str(worker.worker), str(worker.multiprocessor), f"{worker.tasks:,}", *shares)
    return table
