"""Runs a table on k workers on paper: makespan, timeline, critical path, or who waits for what."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

from workloads.megakernel.table import Dependency, Table, TableError


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of the four parts of an instruction.

    `wait_ns` is what seeing a counter costs once it holds its value, `signal_ns` what publishing the output
    costs; both are paid by the worker. An instruction without dependencies does not wait.
    """

    fetch_ns: int = 300
    wait_ns: int = 300
    execute_ns: int = 300
    signal_ns: int = 300


@dataclass(frozen=True)
class Run:
    """How to run: `resident` workers at the same time (None: all), by stride or from a queue.

    With `prefetch` an instruction is fetched while the worker's previous one waits and executes.
    """

    workers: int
    resident: int | None = None
    queue: bool = False
    prefetch: bool = False
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True)
class Task:
    """One executed instruction. `released_by` is the instruction whose signal or end let it go on, if any."""

    instruction: int
    worker: int
    fetch_ns: int
    wait_ns: int
    execute_ns: int
    end_ns: int
    released_by: int | None


@dataclass(frozen=True)
class Starving:
    """A worker that waits for ever: its instruction, what it waits for, and who would have to give it."""

    worker: int
    instruction: int
    dependency: Dependency
    seen: int
    missing: tuple[int, ...]

    @property
    def text(self) -> str:
        """One sentence for an error."""
        givers = ", ".join(map(str, self.missing[:4])) + (", ..." if len(self.missing) > 4 else "")
        return (
            f"block {self.worker} waits at instruction {self.instruction} for counter"
            f" {self.dependency.counter} to reach {self.dependency.count}, it stands at {self.seen}, and"
            f" {f'instruction {givers} never ran' if self.missing else 'nothing adds to it'}"
        )


@dataclass(frozen=True)
class Simulation:
    """`tasks` in order of start of execution; `critical_path` are their instructions, first to last.

    `deadlock` is empty when everything ran; otherwise the tasks are those that did.
    """

    tasks: tuple[Task, ...]
    makespan_ns: int
    critical_path: tuple[int, ...]
    deadlock: tuple[Starving, ...]

    def worker(self, number: int) -> tuple[Task, ...]:
        """The timeline of one worker."""
        return tuple(task for task in self.tasks if task.worker == number)


def simulate(table: Table, run: Run) -> Simulation:
    """Run the table. Never hangs: workers that can only wait are reported in `deadlock`.

    Raises TableError for a run without workers.
    """
    if run.workers < 1 or (run.resident is not None and run.resident < 1):
        raise TableError(f"{run.workers} workers, {run.resident} resident: at least one must run")
    state = _State(table, run)
    while state.events:
        state.step()
    tasks = tuple(sorted(state.tasks, key=lambda task: (task.execute_ns, task.instruction)))
    return Simulation(
        tasks=tasks,
        makespan_ns=max((task.end_ns for task in tasks), default=0),
        critical_path=_critical_path(tasks),
        deadlock=_starving(state),
    )


@dataclass
class _Waiting:
    """A worker at its wait: `since_ns` is when the instruction was there."""

    worker: int
    instruction: int
    fetch_ns: int
    since_ns: int
    released_by: int | None


class _State:
    """Counters, workers and the moments at which something happens next: (time, order, what)."""

    def __init__(self, table: Table, run: Run) -> None:
        self.table, self.run = table, run
        self.counters = [0] * table.counters
        self.tasks: list[Task] = []
        self.waiting: dict[int, list[_Waiting]] = {}  # by the counter that holds it up
        self.events: list[tuple[int, int, tuple[str, int, int]]] = []
        self._order = itertools.count()
        self._fetched_ns: dict[int, int] = {}  # when the worker's last fetch was through
        self._queue = iter(range(len(table)))
        self._own = [iter(range(w, len(table), run.workers)) for w in range(run.workers)]
        resident = run.workers if run.resident is None else min(run.resident, run.workers)
        self._not_started = deque(range(resident, run.workers))
        for worker in range(resident):
            self._push(0, ("next", worker, -1))

    def step(self) -> None:
        now_ns, _, (what, who, by) = heapq.heappop(self.events)
        if what == "next":
            self._take(now_ns, who, None if by < 0 else by)
        else:
            self._signal(now_ns, who, by)

    def _push(self, at_ns: int, event: tuple[str, int, int]) -> None:
        heapq.heappush(self.events, (at_ns, next(self._order), event))

    def _take(self, now_ns: int, worker: int, previous: int | None) -> None:
        number = next(self._queue if self.run.queue else self._own[worker], None)
        if number is None:
            if self._not_started:
                self._push(
                    now_ns, ("next", self._not_started.popleft(), -1 if previous is None else previous)
                )
            return
        # with prefetch a fetch starts where the one before it ended, if the worker was busy until now
        fetch_ns = self._fetched_ns.get(worker, now_ns) if self.run.prefetch else now_ns
        there_ns = max(now_ns, fetch_ns + self.run.costs.fetch_ns)
        self._fetched_ns[worker] = fetch_ns + self.run.costs.fetch_ns
        self._wait(_Waiting(worker, number, fetch_ns, there_ns, previous), now_ns)

    def _wait(self, waiting: _Waiting, now_ns: int) -> None:
        for dependency in self.table.instructions[waiting.instruction].dependencies:
            if not self._holds(dependency):
                self.waiting.setdefault(dependency.counter, []).append(waiting)
                return
        self._execute(waiting, max(now_ns, waiting.since_ns))

    def _holds(self, dependency: Dependency) -> bool:
        known = 0 <= dependency.counter < len(self.counters)
        return known and self.counters[dependency.counter] >= dependency.count

    def _execute(self, waiting: _Waiting, released_ns: int) -> None:
        costs, number = self.run.costs, waiting.instruction
        waits = bool(self.table.instructions[number].dependencies)
        start_ns = released_ns + (costs.wait_ns if waits else 0)
        end_ns = start_ns + costs.execute_ns + costs.signal_ns
        self.tasks.append(
            Task(
                instruction=number,
                worker=waiting.worker,
                fetch_ns=waiting.fetch_ns,
                wait_ns=waiting.since_ns,
                execute_ns=start_ns,
                end_ns=end_ns,
                released_by=waiting.released_by,
            )
        )
        # the signal first: a worker's next instruction may need it
        self._push(end_ns, ("signal", number, number))
        self._push(end_ns, ("next", waiting.worker, number))

    def _signal(self, now_ns: int, number: int, by: int) -> None:
        counter = self.table.instructions[number].signals
        if counter is None or not 0 <= counter < len(self.counters):
            return
        self.counters[counter] += 1
        for waiting in self.waiting.pop(counter, []):
            if now_ns > waiting.since_ns:
                waiting.released_by = by
            self._wait(waiting, now_ns)


def _critical_path(tasks: tuple[Task, ...]) -> tuple[int, ...]:
    """Back from the instruction that ended last, over what released each."""
    if not tasks:
        return ()
    by_number = {task.instruction: task for task in tasks}
    task = max(tasks, key=lambda task: (task.end_ns, -task.instruction))
    path = [task.instruction]
    while task.released_by is not None:
        task = by_number[task.released_by]
        path.append(task.instruction)
    return tuple(reversed(path))


def _starving(state: _State) -> tuple[Starving, ...]:
    ran = {task.instruction for task in state.tasks}
    producers = state.table.producers()
    found = []
    for counter, stuck in state.waiting.items():
        known = 0 <= counter < len(state.counters)
        for waiting in stuck:
            instruction = state.table.instructions[waiting.instruction]
            dependency = next(d for d in instruction.dependencies if not state._holds(d))
            found.append(
                Starving(
                    worker=waiting.worker,
                    instruction=waiting.instruction,
                    dependency=dependency,
                    seen=state.counters[counter] if known else 0,
                    missing=tuple(p for p in producers[counter] if p not in ran) if known else (),
                )
            )
    return tuple(sorted(found, key=lambda starving: starving.instruction))
