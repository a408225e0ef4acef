"""Tasks inside one kernel: where its workers' time goes, and what the kernel's end waited for.

A megakernel has no kernel boundaries, so a trace shows one bar. It records its own instructions instead; this
reads those records as gaps are read between kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.analysis.attribution import find_members, match_ranges
from tracekit.analysis.stats import Distribution, group
from tracekit.errors import TraceError, UnanswerableError
from tracekit.trace import Ints, Trace

FORMAT = "tracekit.tasks/1"
MISFIT_LIMIT_NS = 10_000  # two clocks of one GPU drift less than this over a recording


@dataclass(frozen=True)
class Workers:
    """One value a worker (a block of the kernel), ns after `TaskRecords.origin_ns`."""

    started_ns: Ints
    ended_ns: Ints
    multiprocessor: Ints


@dataclass(frozen=True)
class TaskRecords:
    """What one launch recorded: one value a task in each column, times in ns after `origin_ns`.

    `origin_ns` is on the GPU's `clock`, not on the trace's. `fetch_ns` is when the task was asked for (ahead
    of its turn with prefetch), `wait_ns` when its worker turned to it, `execute_ns` when its dependencies
    held, `end_ns` when its output was published. `name` indexes `names`; `signals` is the counter that the
    task raises, -1 for none; task `wait_task[i]` waits for counter `wait_counter[i]`.
    """

    kernel: str
    range_name: str
    clock: str
    tick_ns: int
    origin_ns: int
    dropped: int
    workers: Workers
    names: tuple[str, ...]
    name: Ints
    worker: Ints
    instruction: Ints
    fetch_ns: Ints
    wait_ns: Ints
    execute_ns: Ints
    end_ns: Ints
    signals: Ints
    wait_task: Ints
    wait_counter: Ints

    def __len__(self) -> int:
        return len(self.worker)


@dataclass(frozen=True)
class Alignment:
    """trace time = GPU time + `offset_ns`, give or take `residual_ns`.

    `fits` is False where no offset puts every launch's records inside its kernel: then the residual is by how
    much the best one misses.
    """

    offset_ns: int
    residual_ns: int
    launches: int
    fits: bool


@dataclass(frozen=True)
class WorkerTime:
    """Where one worker's time went; the four parts add up to the kernel's span.

    `fetch_ns` counts only what held the worker up; `idle_ns` is the rest: before its first task, between
    tasks, after its last.
    """

    worker: int
    multiprocessor: int
    tasks: int
    fetch_ns: int
    wait_ns: int
    execute_ns: int
    idle_ns: int


@dataclass(frozen=True)
class KindTime:
    """The tasks of one name."""

    name: str
    tasks: int
    wait_ns: Distribution
    execute_ns: Distribution


@dataclass(frozen=True)
class PathStep:
    """A task of the critical path; `released_ns` is from the end of the step before to its own execution.

    `by` says what held it up: `dependency` (another task's signal), `worker` (its worker's task before), or
    `start` for the first.
    """

    instruction: int
    worker: int
    name: str
    by: str
    released_ns: int
    execute_ns: int


@dataclass(frozen=True)
class TaskReport:
    """What `tracekit gaps --by task` answers for one recorded launch.

    The path's steps add up: first start + sum of released and execute = the last task's end.
    """

    kernel: str
    range_name: str
    span_ns: int
    tick_ns: int
    tasks: int
    dropped: int
    start_ns: int | None
    alignment: Alignment | None
    workers: tuple[WorkerTime, ...]
    kinds: tuple[KindTime, ...]
    critical_path: tuple[PathStep, ...]

    def total_ns(self, part: str) -> int:
        """`fetch`, `wait`, `execute` or `idle` over all workers."""
        return sum(getattr(worker, f"{part}_ns") for worker in self.workers)


def align_clocks(first_ns: Ints, last_ns: Ints, start_ns: Ints, end_ns: Ints) -> Alignment:
    """The offset from the GPU's clock to the trace's, from launches that both recorded.

    A launch's first and last record (GPU clock) lie inside its kernel (trace clock); so each launch bounds
    the offset from both sides, and the middle of what is left is taken. Raises UnanswerableError without
    launches, and where the best offset misses by more than 10 us: the records are of other kernels.
    """
    if not len(first_ns):
        raise UnanswerableError("no launch with records: clocks cannot be aligned; record with --timeline")
    low, high = int((start_ns - first_ns).max()), int((end_ns - last_ns).min())
    residual_ns = (abs(high - low) + 1) // 2
    if low > high and residual_ns > MISFIT_LIMIT_NS:
        raise UnanswerableError(
            f"the records miss their kernels by {residual_ns} ns: they belong to another recording;"
            " record trace and timeline together"
        )
    return Alignment((low + high) // 2, residual_ns, len(first_ns), low <= high)


def align_to_kernel(records: TaskRecords, start_ns: int, end_ns: int) -> Alignment:
    """The same from one launch, by its blocks' first start and last end."""
    first = records.origin_ns + int(records.workers.started_ns.min())
    last = records.origin_ns + int(records.workers.ended_ns.max())
    return align_clocks(*(np.array([value], dtype=np.int64) for value in (first, last, start_ns, end_ns)))


def measure_tasks(records: TaskRecords, alignment: Alignment | None = None) -> TaskReport:
    """Wait, execute and idle time of each worker, distributions by name, the critical path.

    Raises UnanswerableError where every record was dropped.
    """
    if not len(records):
        raise UnanswerableError(
            f"no task of {records.kernel} was recorded ({records.dropped} dropped): use a larger buffer"
        )
    first = int(records.workers.started_ns.min())
    return TaskReport(
        kernel=records.kernel,
        range_name=records.range_name,
        span_ns=int(records.workers.ended_ns.max()) - first,
        tick_ns=records.tick_ns,
        tasks=len(records),
        dropped=records.dropped,
        start_ns=records.origin_ns + first + alignment.offset_ns if alignment else None,
        alignment=alignment,
        workers=_worker_times(records),
        kinds=_kind_times(records),
        critical_path=_critical_path(records),
    )


def measure_recorded(trace: Trace, documents: Sequence[Any], where: str) -> list[TaskReport]:
    """A report a document of a sidecar's `tasks`, each aligned to the one kernel its NVTX range launched.

    Raises TraceError for a broken document, UnknownNameError where the range is not in the trace,
    UnanswerableError where it launched no such kernel, or several.
    """
    return [_measure_aligned(trace, read_tasks(document, where)) for document in documents]


def _measure_aligned(trace: Trace, records: TaskRecords) -> TaskReport:
    members = find_members(trace, match_ranges(trace, records.range_name))
    rows = [row for row in members.kernel.tolist() if trace.names[trace.kernels.name[row]] == records.kernel]
    if len(rows) != 1:
        raise UnanswerableError(
            f"range {records.range_name} launched {records.kernel} {len(rows)} times in the trace, and its"
            " records are of one launch: record trace and timeline together"
        )
    start_ns, end_ns = (int(column[rows[0]]) for column in (trace.kernels.start_ns, trace.kernels.end_ns))
    return measure_tasks(records, align_to_kernel(records, start_ns, end_ns))


def read_tasks(document: Any, where: str) -> TaskRecords:
    """Records from a sidecar's `tasks` entry. Raises TraceError, which names the field, for a broken one."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise TraceError(f"{where}: tasks are no {FORMAT}; record again")
    workers, columns = _member(document, "workers", where), _member(document, "tasks", where)
    count = len(_member(columns, "worker", where, Sequence))
    names, name = np.unique(_texts(columns, "name", count, where), return_inverse=True)
    waits = _pairs(columns, where)
    times = {key: _ints(columns, key, count, where) for key in _COLUMNS}
    worker_count = len(_member(workers, "started_ns", where, Sequence))
    records = TaskRecords(
        kernel=_member(document, "kernel", where, str),
        range_name=_member(document, "range", where, str),
        clock=_member(document, "clock", where, str),
        tick_ns=_member(document, "tick_ns", where, int),
        origin_ns=_member(document, "origin_ns", where, int),
        dropped=_member(document, "dropped", where, int),
        workers=Workers(*(_ints(workers, key, worker_count, where) for key in _WORKER_COLUMNS)),
        names=tuple(str(text) for text in names),
        name=name.astype(np.int64),
        wait_task=waits[:, 0],
        wait_counter=waits[:, 1],
        **times,
    )
    _check_rows(records, where)
    return records


_COLUMNS = ("worker", "instruction", "fetch_ns", "wait_ns", "execute_ns", "end_ns", "signals")
_WORKER_COLUMNS = ("started_ns", "ended_ns", "multiprocessor")


# Measuring


def _previous_on_worker(records: TaskRecords) -> Ints:
    """For each task the row of the one before it on its worker, -1 for the first."""
    order = np.lexsort((records.execute_ns, records.worker))
    previous = np.full(len(records), -1, dtype=np.int64)
    same = records.worker[order][1:] == records.worker[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _worker_times(records: TaskRecords) -> tuple[WorkerTime, ...]:
    previous, workers = _previous_on_worker(records), records.workers
    span_ns = int(workers.ended_ns.max() - workers.started_ns.min())
    free_ns = np.where(previous >= 0, records.end_ns[previous], workers.started_ns[records.worker])
    held_ns = np.maximum(records.wait_ns - np.maximum(records.fetch_ns, free_ns), 0)
    count = len(workers.started_ns)

    def sums(values: Ints) -> list[int]:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, records.worker, values)
        return [int(value) for value in total]

    parts = (held_ns, records.execute_ns - records.wait_ns, records.end_ns - records.execute_ns)
    rows = zip(
        workers.multiprocessor.tolist(), sums(np.ones_like(held_ns)), *(sums(p) for p in parts), strict=True
    )
    return tuple(
        WorkerTime(number, sm, tasks, fetch, wait, execute, span_ns - fetch - wait - execute)
        for number, (sm, tasks, fetch, wait, execute) in enumerate(rows)
    )


def _kind_times(records: TaskRecords) -> tuple[KindTime, ...]:
    codes = records.name.astype(np.int32)
    wait = group(codes, records.execute_ns - records.wait_ns, len(records.names))
    execute = group(codes, records.end_ns - records.execute_ns, len(records.names))
    counts = np.bincount(codes, minlength=len(records.names)).tolist()
    rows = zip(records.names, counts, wait.distributions(), execute.distributions(), strict=True)
    return tuple(KindTime(name, count, w, e) for name, count, w, e in rows if w and e)


def _critical_path(records: TaskRecords) -> tuple[PathStep, ...]:
    """Back from the task that ended last, each time to what ended last of all that it needed."""
    previous = _previous_on_worker(records)
    releaser = _last_producer(records)
    row = int(np.argmax(records.end_ns))
    steps: list[PathStep] = []
    while row >= 0:
        before, by = _what_released(records, row, int(previous[row]), releaser.get(row, -1))
        free_ns = int(records.end_ns[before] if before >= 0 else records.workers.started_ns.min())
        start_ns = int(records.execute_ns[row])
        steps.append(
            PathStep(
                instruction=int(records.instruction[row]),
                worker=int(records.worker[row]),
                name=records.names[records.name[row]],
                by=by,
                released_ns=start_ns - free_ns,
                execute_ns=int(records.end_ns[row]) - start_ns,
            )
        )
        row = before
    return tuple(reversed(steps))


def _what_released(records: TaskRecords, row: int, own: int, other: int) -> tuple[int, str]:
    if own < 0 and other < 0:
        return -1, "start"
    if other < 0 or (own >= 0 and records.end_ns[own] > records.end_ns[other]):
        return own, "worker"
    return other, "dependency"


def _last_producer(records: TaskRecords) -> dict[int, int]:
    """For each task that waits, the row of the producer that ended last before it went on.

    A counter that later tasks raise too may show one of those that did not matter.
    """
    raised: dict[int, list[int]] = {}
    for row in np.argsort(records.end_ns, kind="stable").tolist():
        raised.setdefault(int(records.signals[row]), []).append(row)
    ends = {counter: records.end_ns[rows] for counter, rows in raised.items()}
    found: dict[int, int] = {}
    for task, counter in zip(records.wait_task.tolist(), records.wait_counter.tolist(), strict=True):
        if counter not in raised:
            continue  # its record was dropped
        # a producer reads its end after it signalled: its stamp may be up to a tick late
        by_then = records.execute_ns[task] + records.tick_ns
        last = int(np.searchsorted(ends[counter], by_then, side="right")) - 1
        row = raised[counter][last]
        earlier = row != task and records.execute_ns[row] < records.execute_ns[task]
        if last >= 0 and earlier and records.end_ns[row] >= _end_of(records, found.get(task)):
            found[task] = row
    return found


def _end_of(records: TaskRecords, row: int | None) -> int:
    return int(records.end_ns[row]) if row is not None else int(np.iinfo(np.int64).min)


# Reading


def _member(document: Mapping[str, Any], name: str, where: str, kind: Any = Mapping) -> Any:
    value = document.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TraceError(f"{where}: tasks.{name} is missing or of the wrong kind; record again")
    return value


def _ints(columns: Mapping[str, Any], name: str, count: int, where: str) -> Ints:
    values = _member(columns, name, where, Sequence)
    if len(values) != count or not all(type(value) is int and abs(value) < 2**62 for value in values):
        raise TraceError(f"{where}: tasks.{name} is no column of {count} integers; record again")
    return np.array(values, dtype=np.int64)


def _texts(columns: Mapping[str, Any], name: str, count: int, where: str) -> list[str]:
    values = _member(columns, name, where, Sequence)
    if len(values) != count or not all(isinstance(value, str) for value in values):
        raise TraceError(f"{where}: tasks.{name} is no column of {count} texts; record again")
    return list(values)


def _pairs(columns: Mapping[str, Any], where: str) -> Ints:
    pairs = _member(columns, "waits", where, Sequence)
    good = all(isinstance(p, Sequence) and len(p) == 2 and all(type(v) is int for v in p) for p in pairs)
    if not good:
        raise TraceError(f"{where}: tasks.waits are no pairs of integers; record again")
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _check_rows(records: TaskRecords, where: str) -> None:
    times = (records.wait_ns, records.execute_ns, records.end_ns)
    if any((after < before).any() for before, after in itertools.pairwise(times)):
        raise TraceError(f"{where}: a task ends before it begins; record again")
    for rows, count in (
        (records.worker, len(records.workers.started_ns)),
        (records.wait_task, len(records)),
    ):
        if len(rows) and (rows.min() < 0 or rows.max() >= count):
            raise TraceError(f"{where}: a task names a worker or task that is not there; record again")
