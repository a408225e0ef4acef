"""Tasks inside a kernel: parts that add up, a path that can be read off, clocks brought together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import Call, Kernel, Range, build_trace
from tests.run import run
from tracekit.analysis.tasks import (
    Alignment,
    TaskRecords,
    align_clocks,
    align_to_kernel,
    measure_tasks,
    read_tasks,
)
from tracekit.capture.sidecar import Machine, Sidecar, sidecar_path, write_sidecar
from tracekit.errors import TraceError, UnanswerableError
from tracekit.report.tasks import PARTS, tasks_json, tasks_text
from workloads.megakernel.simulator import Costs, Run, simulate
from workloads.megakernel.table import ChainShape, Deps, chain_table

# time      0    10   20   30   40   50   60   70   80   90
# worker 0  f----w    e---------x                              instruction 0
# worker 0                      (f before) w----e---------x    instruction 2 waits for 1
# worker 1  f---------w    e--------------------x              instruction 1 (end 50)
DOCUMENT: dict[str, Any] = {
    "format": "tracekit.tasks/1",
    "kernel": "megakernel",
    "range": "megakernel:tasks",
    "clock": "globaltimer",
    "tick_ns": 1,
    "origin_ns": 1_000_000,
    "dropped": 0,
    "workers": {"started_ns": [0, 0], "ended_ns": [90, 60], "multiprocessor": [3, 9]},
    "tasks": {
        "worker": [0, 1, 0],
        "instruction": [0, 1, 2],
        "fetch_ns": [0, 0, 10],
        "wait_ns": [10, 20, 42],
        "execute_ns": [20, 25, 55],
        "end_ns": [40, 50, 80],
        "name": ["load", "layer", "layer"],
        "signals": [0, 1, 2],
        "waits": [[2, 1]],
    },
}


def records() -> TaskRecords:
    return read_tasks(json.loads(json.dumps(DOCUMENT)), "x.tracekit.json")


def test_a_workers_time_is_fetch_wait_execute_and_idle() -> None:
    first, second = measure_tasks(records()).workers

    assert (first.fetch_ns, first.wait_ns, first.execute_ns, first.idle_ns) == (10 + 2, 10 + 13, 20 + 25, 10)
    assert (second.fetch_ns, second.wait_ns, second.execute_ns, second.idle_ns) == (20, 5, 25, 40)
    assert (first.tasks, first.multiprocessor) == (2, 3)


def test_the_path_goes_over_the_task_that_was_waited_for() -> None:
    path = measure_tasks(records()).critical_path

    assert [(s.instruction, s.by, s.released_ns, s.execute_ns) for s in path] == [
        (1, "start", 25, 25),
        (2, "dependency", 5, 25),
    ]


def test_kinds_are_kept_apart() -> None:
    kinds = {kind.name: kind for kind in measure_tasks(records()).kinds}

    assert kinds["layer"].tasks == 2
    assert kinds["layer"].wait_ns.median == 9
    assert kinds["load"].execute_ns.max == 20


def test_alignment_is_the_middle_of_what_the_kernel_allows() -> None:
    # the blocks ran from 1,000,000 to 1,000,090; the trace shows a kernel of 130 ns
    alignment = align_to_kernel(records(), 5_000_000, 5_000_130)

    assert alignment == Alignment(offset_ns=4_000_020, residual_ns=20, launches=1, fits=True)
    assert measure_tasks(records(), alignment).start_ns == 5_000_020


def test_several_launches_narrow_the_offset() -> None:
    def column(*values: int) -> Any:
        return np.array(values, dtype=np.int64)

    assert align_clocks(column(0, 1000), column(90, 1090), column(500, 1490), column(600, 1600)) == Alignment(
        505, 5, 2, True
    )


def test_records_that_stick_out_of_their_kernel_say_so() -> None:
    assert align_to_kernel(records(), 5_000_000, 5_000_050) == Alignment(3_999_980, 20, 1, False)


def test_records_of_another_recording_are_refused() -> None:
    far = np.array([0, 10**9], dtype=np.int64)

    with pytest.raises(UnanswerableError, match="belong to another recording"):
        align_clocks(far, far + 50, np.array([0, 0]), np.array([60, 60]))
    with pytest.raises(UnanswerableError, match="no launch with records"):
        align_clocks(far[:0], far[:0], far[:0], far[:0])


def test_nothing_but_dropped_records_is_no_answer() -> None:
    empty: dict[str, list[int]] = {key: [] for key in DOCUMENT["tasks"]}

    with pytest.raises(UnanswerableError, match=r"no task of megakernel was recorded \(7 dropped\)"):
        measure_tasks(read_tasks({**DOCUMENT, "dropped": 7, "tasks": empty}, "x"))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("format",), "x", "tasks are no tracekit.tasks/1"),
        (("kernel",), None, "tasks.kernel is missing"),
        (("tick_ns",), True, "tasks.tick_ns is missing"),
        (("workers", "ended_ns"), [1], "tasks.ended_ns is no column of 2 integers"),
        (("tasks", "wait_ns"), [1, 2], "tasks.wait_ns is no column of 3 integers"),
        (("tasks", "end_ns"), [1, 2, 2.5], "tasks.end_ns is no column of 3 integers"),
        (("tasks", "end_ns"), [1, 2, 2**63], "tasks.end_ns is no column of 3 integers"),
        (("tasks", "name"), ["a", "b", 3], "tasks.name is no column of 3 texts"),
        (("tasks", "waits"), [[0]], "tasks.waits are no pairs"),
        (("tasks", "waits"), [[9, 0]], "names a worker or task that is not there"),
        (("tasks", "worker"), [0, 2, 0], "names a worker or task that is not there"),
        (("tasks", "end_ns"), [1, 2, 3], "a task ends before it begins"),
    ],
)
def test_broken_records_are_refused(place: tuple[str, ...], value: object, message: str) -> None:
    broken = json.loads(json.dumps(DOCUMENT))
    inside = broken
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value

    with pytest.raises(TraceError, match=message):
        read_tasks(broken, "x.tracekit.json")


def test_the_text_says_shares_path_and_residual() -> None:
    report = measure_tasks(records(), align_to_kernel(records(), 0, 130))
    text = tasks_text(replace(report, dropped=3), width=110)

    assert "megakernel (megakernel:tasks): 3 tasks on 2 workers in 90 ns." in text
    assert "Of the workers' time: fetch 17.8 %, wait 15.6 %, execute 38.9 %, idle 27.8 %." in text
    assert "The critical path has 2 tasks, 1 released by another task: executing 50 ns" in text
    assert "give or take 20 ns" in text
    assert "3 more tasks were dropped" in text


def test_the_json_has_every_part() -> None:
    (launch,) = json.loads(tasks_json([measure_tasks(records())]))["launches"]

    assert launch["total_ns"] == {"fetch": 32, "wait": 28, "execute": 70, "idle": 50}
    assert launch["alignment"] is None
    assert launch["critical_path"][0]["instruction"] == 1


# Against the simulator, which knows the truth


def simulated(shape: ChainShape, run: Run) -> tuple[TaskRecords, int]:
    table = chain_table(shape)
    done = simulate(table, run)
    columns = {
        "worker": [t.worker for t in done.tasks],
        "instruction": [t.instruction for t in done.tasks],
        **{
            name: [getattr(t, name) for t in done.tasks]
            for name in ("fetch_ns", "wait_ns", "execute_ns", "end_ns")
        },
        "name": ["layer"] * len(table),
        "signals": [table.instructions[t.instruction].signals for t in done.tasks],
        "waits": [
            [row, d.counter]
            for row, t in enumerate(done.tasks)
            for d in table.instructions[t.instruction].dependencies
        ],
    }
    workers = {
        "started_ns": [0] * run.workers,
        "ended_ns": [done.makespan_ns] * run.workers,
        "multiprocessor": list(range(run.workers)),
    }
    document = {**DOCUMENT, "tick_ns": 0, "workers": workers, "tasks": columns}
    return read_tasks(document, "simulated"), done.makespan_ns


@given(
    st.builds(
        ChainShape,
        layers=st.integers(1, 5),
        size=st.just(24),
        blocks=st.sampled_from([1, 2, 3, 4]),
        deps=st.sampled_from(Deps),
        rotate=st.integers(0, 3),
    ),
    st.builds(
        Run,
        workers=st.integers(1, 6),
        queue=st.booleans(),
        prefetch=st.booleans(),
        costs=st.builds(Costs, *(st.integers(1, 50) for _ in range(4))),
    ),
)
def test_parts_fill_the_span_and_the_path_fills_the_makespan(shape: ChainShape, run: Run) -> None:
    rows, makespan_ns = simulated(shape, run)
    report = measure_tasks(rows)

    for worker in report.workers:
        assert sum(getattr(worker, f"{part}_ns") for part in PARTS) == report.span_ns
        assert min(getattr(worker, f"{part}_ns") for part in PARTS) >= 0
    path = report.critical_path
    assert sum(step.released_ns + step.execute_ns for step in path) == makespan_ns
    assert all(step.released_ns >= 0 for step in path)


# From the sidecar, on the command line


def recorded(folder: Path, *, tasks: Any = (DOCUMENT,), sidecar: bool = True, kernels: int = 1) -> Path:
    """A kernel of 130 ns in the documents' range, and the sidecar beside its trace."""
    starts = [5_000_000 + 1000 * i for i in range(kernels)]
    path = build_trace(
        folder / "x.sqlite",
        kernels=[Kernel(start, start + 130, "megakernel", id=i) for i, start in enumerate(starts)],
        calls=[Call(start - 500, start - 400, id=i) for i, start in enumerate(starts)],
        ranges=[Range(4_999_000, 5_009_000, "megakernel:tasks", domain="tracekit")],
    )
    if sidecar:
        machine = Machine(None, None, None, None)
        written = Sidecar("megakernel", "nsys", "node", "now", (), {}, machine, tasks=tasks)
        write_sidecar(written, sidecar_path(path))
    return path


def test_the_command_aligns_the_sidecars_tasks_with_their_kernel(tmp_path: Path) -> None:
    path = recorded(tmp_path)

    text = run("gaps", path, "--by", "task")
    (launch,) = run("gaps", path, "--by", "task", "--json").document["launches"]

    assert text.code == 0, text.err
    assert "megakernel (megakernel:tasks): 3 tasks on 2 workers in 90 ns." in text.out
    assert "give or take 20 ns" in text.out
    assert launch["start_ns"] - launch["alignment"]["offset_ns"] == DOCUMENT["origin_ns"]
    assert launch["alignment"]["residual_ns"] == 20


@pytest.mark.parametrize("what", [{"sidecar": False}, {"tasks": ()}])
def test_without_tasks_the_command_says_how_to_record_some(tmp_path: Path, what: Any) -> None:
    outcome = run("gaps", recorded(tmp_path, **what), "--by", "task")

    assert outcome.code == 3
    assert "x.tracekit.json beside it holds no tasks: record a kernel that times its own" in outcome.err


@pytest.mark.parametrize("kernels", [0, 2])
def test_records_of_one_launch_need_one_kernel(tmp_path: Path, kernels: int) -> None:
    outcome = run("gaps", recorded(tmp_path, kernels=kernels), "--by", "task")

    assert outcome.code != 0
    if kernels:
        assert "launched megakernel 2 times in the trace" in outcome.err


def test_a_broken_task_document_names_the_file(tmp_path: Path) -> None:
    path = recorded(tmp_path, tasks=({**DOCUMENT, "tick_ns": "32"},))

    assert (
        "x.tracekit.json: tasks.tick_ns is missing or of the wrong kind"
        in run("gaps", path, "--by", "task").err
    )


@pytest.mark.parametrize("option", [["--csv"], ["--where", "replay"], ["--range", "x"]])
def test_tasks_are_not_boundaries(tmp_path: Path, option: list[str]) -> None:
    outcome = run("gaps", recorded(tmp_path), "--by", "task", *option)

    assert outcome.code == 2
    assert "--by task reports whole launches" in outcome.err
