"""The megakernel without a GPU: compiled by NVRTC, its PTX read, its launch run by a NumPy stand-in."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import fake_gpu, sass
from tests.fake_gpu import Launched, memory
from workloads.errors import WorkloadError, WrongResultError
from workloads.megakernel import gpu as megakernels
from workloads.megakernel.gpu import JOB, Build, Poll, Prefetch, Schedule, Signal, StoppedError, check_build
from workloads.megakernel.packing import DEPENDENCY, INSTRUCTION, pack
from workloads.megakernel.table import ChainShape, Deps, Opcode, TableError, chain_table
from workloads.megakernel.tasks import tasks_document
from workloads.megakernel.workload import Options, main, run
from workloads.nvrtc import FOLDER, compile_file

SMALL = Options(layers=4, size=256, blocks=4, vector=2, workers=2, forwards=2, repeats=2)


def ptx_of(build: Build, architecture: str = "sm_90") -> str:
    return compile_file(build.source[0], architecture, build.defines).ptx


LOCKSTEP = [signal for signal in Signal if signal is not Signal.COUNTER]


def lockstep(signal: Signal, **changes: Any) -> Build:
    """As many threads as 16 blocks need where they are a cluster."""
    chosen = {"block": 1024 if signal.in_cluster else 256, **changes}
    return Build(signal=signal, **chosen)


def operations(ptx: str) -> list[str]:
    """The instructions of the kernel and its functions, in the order of the text."""
    found = (re.match(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)[\s;]", line) for line in ptx.splitlines())
    return [match[1] for match in found if match]


def place(ptx: str, operation: str) -> list[int]:
    return [i for i, line in enumerate(operations(ptx)) if line.startswith(operation)]


# The code


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
@pytest.mark.parametrize(
    "build",
    [
        *(Build(prefetch=p, schedule=s) for p, s in itertools.product(Prefetch, Schedule)),
        *(Build(poll=poll, vector=4) for poll in Poll),
        Build(timeline=True, chaos=True, counter_bytes=4),
        *(lockstep(s, block=256, vector=v) for s, v in itertools.product(LOCKSTEP, (1, 2, 4))),
        *(lockstep(s, timeline=True, chaos=True) for s in LOCKSTEP),
        *(lockstep(s, prefetch=Prefetch.NONE) for s in LOCKSTEP),
    ],
    ids=lambda build: (
        " ".join(f"{k}={v}" for k, v in build.defines.items()) if isinstance(build, Build) else build
    ),
)
def test_every_variant_compiles(build: Build, architecture: str) -> None:
    compiled = compile_file(build.source[0], architecture, build.defines)

    assert f".target {architecture}" in compiled.ptx
    assert compiled.cubin.startswith(b"\x7fELF")


@pytest.mark.parametrize("poll", [Poll.ONE, Poll.EVERY])
@pytest.mark.parametrize("prefetch", Prefetch)
def test_counters_are_acquired_and_released_at_gpu_scope(prefetch: Prefetch, poll: Poll) -> None:
    ptx = ptx_of(Build(prefetch=prefetch, poll=poll))

    assert place(ptx, "ld.acquire.gpu.global.u32")
    assert len(place(ptx, "red.release.gpu.global.add.u32")) == 1
    assert not re.search(r"\b(acquire|release)\.(cta|sys)\b|\bld\.volatile", ptx)


def test_overlapped_polls_are_followed_by_an_acquire_fence() -> None:
    ptx = ptx_of(Build(poll=Poll.OVERLAPPED))

    fences = place(ptx, "fence.acq_rel.gpu")
    assert place(ptx, "ld.relaxed.gpu") and fences
    assert not place(ptx, "ld.acquire")
    assert max(fences) < place(ptx, "red.release")[0]


def test_the_next_instruction_and_weights_are_under_way_before_the_wait() -> None:
    ptx = ptx_of(Build(prefetch=Prefetch.WEIGHTS))

    waits, weights = place(ptx, "ld.acquire"), place(ptx, "ld.global.nc.f32")
    assert len(weights) == 4, "the first weights and biases, and in the loop the next ones"
    assert max(weights) < min(waits)


def test_only_the_input_is_loaded_between_the_wait_and_the_signal() -> None:
    ptx = ptx_of(Build(prefetch=Prefetch.WEIGHTS))
    after = slice(max(place(ptx, "ld.acquire")), place(ptx, "red.release")[0])

    loads = [line for line in operations(ptx)[after] if line.startswith("ld.global")]
    assert loads == ["ld.global.f32"]


POLLS = re.compile(r"LDG\S*STRONG|SYNCS\.PHASECHK")
AHEAD = re.compile(r"LDG|LDGSTS|LDGDEPBAR|ATOMG")


@pytest.mark.parametrize(
    "build",
    [
        *(Build(vector=vector) for vector in (1, 4)),
        Build(schedule=Schedule.QUEUE),
        *(Build(signal=s) for s in Signal if s not in (Signal.COUNTER, Signal.CLUSTER)),
    ],
    ids=lambda build: f"{build.signal} {build.schedule} {build.vector}",
)
def test_the_first_poll_does_not_wait_for_what_was_just_requested(build: Build) -> None:
    compiled = compile_file(build.source[0], "sm_90", build.defines)
    found = sass.instructions(compiled.cubin)
    poll = next(i for i, one in enumerate(found) if POLLS.search(one.text))
    ahead = [i for i in range(poll - 60, poll) if AHEAD.search(found[i].text)]

    assert ahead
    boards = {found[i].sets for i in ahead}
    # a DEPBAR waits for a count, all but the newest copies: it is no wait in this sense
    assert not [one.text for one in found[ahead[0] : poll + 1] if one.waits & boards]


@pytest.mark.parametrize("prefetch", [Prefetch.NONE, Prefetch.INSTRUCTION])
def test_without_weights_ahead_none_are_loaded_early(prefetch: Prefetch) -> None:
    assert not place(ptx_of(Build(prefetch=prefetch)), "ld.global.nc")


def test_the_clock_is_read_for_the_watchdog_only_unless_a_timeline_is_asked_for() -> None:
    assert ptx_of(Build()).count("%globaltimer") == 1
    assert ptx_of(Build(timeline=True)).count("%globaltimer") > 4


@pytest.mark.parametrize("build", [Build(vector=4), *(lockstep(s, block=256, vector=4) for s in LOCKSTEP)])
def test_the_input_never_goes_through_the_read_only_cache(build: Build) -> None:
    ahead = 0 if build.signal is not Signal.COUNTER else 4  # weights into registers, or through shared memory

    assert len(place(ptx_of(build), "ld.global.nc")) == ahead


# Without a table


@pytest.mark.parametrize("signal", [Signal.LEAN, Signal.WARPS, Signal.FLAGS])
def test_counters_and_flags_are_acquired_and_released_at_gpu_scope(signal: Signal) -> None:
    ptx = ptx_of(lockstep(signal))

    assert place(ptx, "ld.acquire.gpu.global.u32")
    raised = "st.release.gpu.global.u32" if signal is Signal.FLAGS else "red.release.gpu.global.add.u32"
    assert len(place(ptx, raised)) == 4, "one in each turn that is written out"
    assert not re.search(r"\b(acquire|release)\.(cta|sys)\b|\bld\.volatile", ptx)


@pytest.mark.parametrize("vector", [1, 2, 4])
def test_data_with_its_epoch_needs_neither_fence_nor_barrier(vector: int) -> None:
    ptx = ptx_of(lockstep(Signal.DATA, vector=vector))

    width = "b64" if vector == 1 else "b128"
    assert place(ptx, f"ld.relaxed.gpu.global.{width}") and place(ptx, f"st.relaxed.gpu.global.{width}")
    for operation in ("fence", "membar", "bar.", "barrier", "red.", "ld.acquire", "st.release"):
        assert not place(ptx, operation), operation


def test_a_cluster_is_arrived_at_with_release_and_left_with_acquire() -> None:
    ptx = ptx_of(lockstep(Signal.CLUSTER))

    assert len(place(ptx, "barrier.cluster.arrive.release.aligned")) == 4
    assert len(place(ptx, "barrier.cluster.wait.acquire.aligned")) == 4 + 1, "the last arrival is waited for"
    assert place(ptx, "ld.shared::cluster.f32")
    assert not place(ptx, "red.") and not place(ptx, "ld.acquire")


def test_pushed_values_are_counted_by_their_readers_mbarrier() -> None:
    ptx = ptx_of(lockstep(Signal.PUSH))

    assert len(place(ptx, "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32")) == 4
    assert len(place(ptx, "st.async.shared::cluster.mbarrier::complete_tx::bytes.u64")) == 4
    assert place(ptx, "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64")
    # the cluster's barrier stands before the first layer and after the last, not between
    assert len(place(ptx, "barrier.cluster.arrive")) == len(place(ptx, "barrier.cluster.wait")) == 2
    assert not place(ptx, "fence.acq_rel") and not place(ptx, "membar")


@pytest.mark.parametrize("signal", LOCKSTEP)
def test_weights_are_under_way_before_the_first_wait(signal: Signal) -> None:
    ptx = ptx_of(lockstep(signal))

    waits = [
        *place(ptx, "ld.acquire"),
        *place(ptx, "ld.relaxed.gpu.global.b64"),
        *place(ptx, "mbarrier.try_wait"),
        *(place(ptx, "barrier.cluster.wait") if signal is Signal.CLUSTER else ()),
    ]
    copies = place(ptx, "cp.async.ca.shared.global")
    assert copies and waits
    assert min(copies) < min(waits)
    assert min(place(ptx, "cp.async.wait_group")) < min(waits)


# What host and kernel must agree on


def source() -> str:
    files = ("megakernel/common.cuh", megakernels.FILE)
    return "".join((FOLDER / file).read_text() for file in files)


def fields(struct: str) -> list[str]:
    body = re.sub(r"//.*", "", source().split(f"struct {struct} {{")[1].split("};")[0])
    return [name for line in body.split(";") for name in re.findall(r"(\w+)(?=,|$)", line.strip())]


def test_the_job_and_the_instruction_have_the_hosts_order() -> None:
    assert fields("Job") == list(JOB)
    assert fields("Instruction") == list(INSTRUCTION)
    assert f"constexpr int STOP = {int(Opcode.STOP)};" in source()


def test_a_packed_table_ends_with_stop_and_knows_whole_runs() -> None:
    packed = pack(chain_table(ChainShape(layers=2, size=8, blocks=2)))

    assert packed.program.tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 4],
        [1, 0, 0, 0, 0, 4, 4, 4],
        [1, 1, 0, 1, 1, 0, 0, 4],
        [1, 1, 1, 1, 1, 4, 4, 4],
        [0, -1, 0, 0, 0, 0, 0, 0],
    ]
    assert [dict(zip(DEPENDENCY, row, strict=True)) for row in packed.dependencies.tolist()] == 2 * [
        {"counter": 0, "count": 2, "whole": 2, "unused": 0}
    ]


# The launch, by a stand-in that reads the job as the kernel does


def stand_in(driver: Any, launched: Launched) -> None:
    (struct,) = memory(launched.arguments, 1, np.uint64).tolist()
    job = dict(zip(JOB, memory(struct, len(JOB), np.uint64).tolist(), strict=True))
    program = memory(job["program"], 8 * (job["instructions"] + 1), np.int32).reshape(-1, 8)
    assert program[-1].tolist() == [0, -1, 0, 0, 0, 0, 0, 0]
    for number, row in enumerate(program[:-1]):
        _execute(job, dict(zip(INSTRUCTION, row.tolist(), strict=True)))
        if job["capacity"]:
            _record(driver, job, launched.grid, number)
    if driver.wrong:
        for name in ("buffer_0", "buffer_1"):
            memory(job[name], job["size"], np.float32)[7] = 99
    if driver.breaks_wait:
        memory(job["report"], 6, np.int32)[:] = [1, 3, 17, 5, 64, 63]


def _execute(job: dict[str, int], at: dict[str, int]) -> None:
    floats = {name: memory(job[name], job["size"], np.float32) for name in ("start", "buffer_0", "buffer_1")}
    source = floats["start"] if at["layer"] == 0 else floats[f"buffer_{(at['layer'] - 1) % 2}"]
    here = slice(at["first"], at["first"] + at["elements"])
    row = 4 * at["layer"] * job["size"]
    weight, bias = (memory(job[n] + row, job["size"], np.float32)[here] for n in ("weights", "biases"))
    values = source[at["input_first"] : at["input_first"] + at["elements"]].astype(np.float64)
    floats[f"buffer_{at['layer'] % 2}"][here] = (np.maximum(values, 0) * weight + bias).astype(np.float32)


def _record(driver: Any, job: dict[str, int], grid: int, number: int) -> None:
    records = memory(job["records"], grid * job["capacity"] * 6, np.uint64).reshape(grid, -1, 6)
    start = driver.clock_ns + 320 * number
    records[number % grid, number // grid] = [start, start + 32, start + 96, start + 256, number, 1]
    blocks = memory(job["blocks"], 4 * grid, np.uint64).reshape(grid, 4)
    blocks[:] = [[driver.clock_ns - 64, start + 320, 7 + block, 0] for block in range(grid)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    installed: Any = fake_gpu.install(monkeypatch)
    installed.wrong = False
    installed.cuOccupancyMaxActiveBlocksPerMultiprocessor = lambda function, block, shared: (0, 1)
    installed.cuOccupancyMaxActiveClusters = lambda function, config: (0, 1)
    installed.cuFuncSetAttribute = lambda function, attribute, value: (0,)
    lockstep_kernel = (megakernels.LOCKSTEP_FILE, megakernels.LOCKSTEP_KERNEL)
    for kernel in ((megakernels.FILE, megakernels.KERNEL), lockstep_kernel):
        monkeypatch.setitem(fake_gpu.KERNELS, kernel, stand_in)
    return installed


def test_a_run_passes_its_check_in_every_mode(driver: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(replace(SMALL, rotate=1, chaos=3))

    assert [timing.mode for timing in result.timings] == [
        "megakernel",
        "megakernel+instruction",
        "megakernel+weights",
    ]
    assert result.facts["workers"] == 2
    assert "3 runs with random delays   PASS" in capsys.readouterr().out


@pytest.mark.parametrize("signal", LOCKSTEP)
def test_a_run_without_a_table_passes_its_check(driver: Any, signal: Signal) -> None:
    deps = Deps.BLOCK if signal is Signal.DATA else Deps.LAYER
    modes = (Prefetch.NONE, Prefetch.WEIGHTS)
    options = replace(
        SMALL, rotate=1, chaos=2, timeline=True, signal=signal, deps=deps, workers=4, prefetch=modes
    )

    result = run(options)

    assert [t.mode for t in result.timings if "timeline" not in t.mode] == [
        f"megakernel+{signal}",
        f"megakernel+weights+{signal}",
    ]
    assert {tasks["kernel"] for tasks in result.facts["tasks"]} == {"lockstep"}


def test_the_job_of_a_kernel_without_a_table_says_what_the_table_says(driver: Any) -> None:
    seen: list[dict[str, int]] = []

    def keep(driver: Any, launched: Launched) -> None:
        (struct,) = memory(launched.arguments, 1, np.uint64).tolist()
        seen.append(dict(zip(JOB, memory(struct, len(JOB), np.uint64).tolist(), strict=True)))
        stand_in(driver, launched)

    fake_gpu.KERNELS[megakernels.LOCKSTEP_FILE, megakernels.LOCKSTEP_KERNEL] = keep
    run(replace(SMALL, rotate=3, signal=Signal.PUSH, workers=4, prefetch=(Prefetch.WEIGHTS,)))

    assert {(job["layers"], job["rotate"], job["withheld"]) for job in seen} == {(4, 3, 2**64 - 1)}
    assert [job["epoch"] for job in seen] == list(range(len(seen)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signal": Signal.DATA}, "--signal data keeps the dependencies of --deps block"),
        ({"signal": Signal.PUSH, "deps": Deps.BLOCK}, "push keeps the dependencies of --deps layer"),
        ({"signal": Signal.FLAGS, "workers": 2}, "a block keeps its place in all layers, use --workers 4"),
        (
            {"signal": Signal.LEAN, "workers": 4, "schedule": Schedule.QUEUE},
            "no instructions to fetch, claim",
        ),
        ({"signal": Signal.CLUSTER, "workers": 32, "blocks": 32, "size": 2048}, "at most 16"),
    ],
)
def test_what_a_kernel_without_a_table_cannot_do_is_refused(
    driver: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        run(replace(SMALL, prefetch=(Prefetch.WEIGHTS,), **changes))


def test_records_become_columns(driver: Any) -> None:
    result = run(replace(SMALL, layers=1, timeline=True, prefetch=(Prefetch.WEIGHTS,)))

    (tasks,) = result.facts["tasks"]
    assert tasks["range"] == "megakernel+weights:tasks"
    assert tasks["tick_ns"] == 32
    assert tasks["workers"]["multiprocessor"] == [7, 8]
    assert tasks["tasks"]["instruction"] == [0, 1, 2, 3]
    assert tasks["tasks"]["worker"] == [0, 1, 0, 1]
    assert tasks["tasks"]["fetch_ns"][:2] == [64, 384]
    assert tasks["tasks"]["name"] == ["layer"] * 4
    assert tasks["tasks"]["waits"] == []


def test_the_command_writes_its_result(driver: Any, tmp_path: Path) -> None:
    main(
        layers=3, size=256, blocks=4, workers=2, prefetch=[Prefetch.WEIGHTS], repeats=1, result=tmp_path / "r"
    )

    written = json.loads((tmp_path / "r").read_text())
    assert written["workload"] == "megakernel"
    assert written["options"]["prefetch"] == ["weights"]
    assert [timing["mode"] for timing in written["timings"]] == ["megakernel+weights"]


def test_the_command_names_a_count_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(timeout_ms=0)
    assert capsys.readouterr().err == "error: --timeout-ms is 0: it must be at least 1\n"


def test_a_wrong_output_is_an_error(driver: Any) -> None:
    driver.wrong = True

    with pytest.raises(WrongResultError, match=r"megakernel: element 7 is .*99"):
        run(SMALL)


def test_the_watchdogs_report_names_block_instruction_and_counter(driver: Any) -> None:
    driver.breaks_wait = True

    with pytest.raises(StoppedError) as stopped:
        run(SMALL)
    assert "block 3 waited longer than 1000 ms at instruction 17 for counter 5 to reach 64" in str(
        stopped.value
    )
    assert "it stands at 63" in str(stopped.value)


def test_more_workers_than_fit_are_refused_before_the_launch(driver: Any) -> None:
    with pytest.raises(TableError, match=r"a grid of 5 blocks, but only 4 can be resident"):
        run(replace(SMALL, workers=5))


def test_local_waits_need_a_stride(driver: Any) -> None:
    with pytest.raises(TableError, match="--skip-local needs --schedule stride"):
        run(replace(SMALL, deps=Deps.BLOCK, skip_local=True, schedule=Schedule.QUEUE))


@pytest.mark.parametrize(
    ("build", "elements", "message"),
    [
        (Build(block=256, vector=3), 768, "--vector is 3"),
        (Build(block=85, vector=3), 256, "--vector is 3"),
        (Build(block=16, vector=1), 16, "would take 16 threads"),
        (Build(block=2048, vector=1), 2048, "would take 2048 threads"),
        (Build(block=128, vector=1), 256, "do not fit 1 a thread"),
        (Build(block=512, vector=4, signal=Signal.LEAN), 2048, "four stages of weights take 65536 bytes"),
        (Build(counter_bytes=6), 256, "--counter-bytes is 6"),
    ],
)
def test_builds_that_cannot_run_are_refused(build: Build, elements: int, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        check_build(build, elements)


def test_dropped_records_are_counted() -> None:
    table = chain_table(ChainShape(layers=1, size=4, blocks=2))
    records = np.zeros((2, 1, 6), dtype=np.uint64)
    records[0, 0] = [1000, 1032, 1064, 1096, 0, 1]
    blocks = np.array([[968, 1200, 3, 4], [968, 1200, 5, 0]], dtype=np.uint64)

    document = tasks_document("megakernel", "x", table, records, blocks)

    assert document["dropped"] == 4
    assert document["tasks"]["instruction"] == [0]
