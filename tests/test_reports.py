"""What people who read GPU traces reported: each case on a few rows, with the right behaviour.

The numbers are those of the list of reports, `small` are those it does not number. Those that are about
files as such stand elsewhere: 50 (JSON that is none) in test_kineto.py; pointers of Git LFS, an export
under a wrong name and secrets in test_cli.py.
"""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.build import (
    CONTEXT,
    EVENT,
    START_END,
    STREAM_WAIT_EVENT,
    Call,
    Copy,
    Kernel,
    Range,
    Replay,
    Wait,
    build_trace,
    node,
)
from tests.run import gaps, row, run, warned
from tracekit.analysis.compare import compare
from tracekit.analysis.gaps import gaps as measure
from tracekit.readers import read

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return partial(build_trace, tmp_path / "trace.sqlite")


def launched(*kernels: Kernel) -> dict[str, list[Kernel] | list[Call]]:
    """The kernels with one call each, 5 ns before and 1 ns long, in the kernel's process."""
    calls = [Call(k.start - 5, k.start - 4, id=k.id, pid=k.pid) for k in kernels if isinstance(k.start, int)]
    return {"kernels": list(kernels), "calls": calls}


def replay(id_: int, start: int, nodes: int, *, each: int = 10, gap: int = 2, graph: int = 1) -> list[Kernel]:
    """One replay of a graph: `nodes` kernels of `each` ns with `gap` ns between."""
    starts = [start + i * (each + gap) for i in range(nodes)]
    return [Kernel(s, s + each, f"n{i}", id=id_, node=node(graph, i)) for i, s in enumerate(starts)]


# A. Busy, idle, gaps


def test_01_idle_is_of_the_device_not_of_its_streams(make: Make) -> None:
    path = make(kernels=[Kernel(0, 100, stream=7), Kernel(0, 10, stream=8), Kernel(90, 100, stream=8)])
    assert gaps(path)["devices"][0]["idle_ns"] == 0
    assert row(gaps(path, "stream"), stream=8)["white_ns"] == 80


def test_02_busy_never_exceeds_the_span(make: Make) -> None:
    path = make(kernels=[Kernel(0, 80, stream=7), Kernel(20, 100, stream=8), Kernel(100, 101, stream=8)])
    device = gaps(path)["devices"][0]
    assert (device["span_ns"], device["busy_ns"], device["idle_ns"]) == (101, 101, 0)
    assert row(gaps(path))["kernel_ns"]["sum"] == 161


def test_03_idle_of_overlapping_kernels(make: Make) -> None:
    """Sums would say 100 - 60 - 30 = 10."""
    path = make(kernels=[Kernel(0, 60), Kernel(40, 70, stream=8), Kernel(100, 100)])
    assert gaps(path)["devices"][0]["idle_ns"] == 30


def test_04_a_stream_number_alone_means_nothing(make: Make) -> None:
    path = make(
        kernels=[
            Kernel(s, s + 5, pid=pid, device=device)
            for s in (1, 11)
            for pid, device in ((1, 0), (1, 1), (2, 0))
        ]
    )
    rows = gaps(path, "stream")["rows"]
    assert [(r["key"]["process"], r["key"]["device"]) for r in rows] == [(1, 0), (1, 1), (2, 0)]
    assert all((r["boundaries"], r["key"]["stream"], r["white_ns"]) == (1, 7, 5) for r in rows)


def test_05_copies_are_busy_and_shown_apart(make: Make) -> None:
    path = make(kernels=[Kernel(0, 10), Kernel(90, 100)], copies=[Copy(5, 40), Copy(50, 60, memset=True)])
    device = gaps(path)["devices"][0]
    assert (device["busy_ns"], device["copy_only_ns"], device["idle_ns"]) == (60, 40, 40)
    assert "40 ns of it copies alone" in run("gaps", path).out


def test_07_three_idle_streams_are_not_three_idle_devices(make: Make) -> None:
    path = make(kernels=[Kernel(s, s + 10, stream=n) for n in (7, 8, 9) for s in (0, 300)])
    assert gaps(path)["devices"][0]["idle_ns"] == 290


def test_08_a_window_counts_its_edges(make: Make) -> None:
    path = make(kernels=[Kernel(10, 30), Kernel(40, 60), Kernel(200, 210)])
    device = gaps(path, "none", "--window", "20..100")["devices"][0]
    assert (device["span_ns"], device["busy_ns"], device["idle_ns"]) == (80, 30, 50)


def test_08_a_device_idle_all_through_the_window_is_listed(make: Make) -> None:
    path = make(kernels=[Kernel(10, 30), Kernel(40, 60), Kernel(1, 5, device=1)])
    devices = gaps(path, "none", "--window", "20..100")["devices"]
    assert [(d["device"], d["busy_ns"], d["idle_ns"]) for d in devices] == [(0, 30, 50), (1, 0, 80)]


def test_08_without_a_window_the_edges_are_said_not_to_count(make: Make) -> None:
    said = run("gaps", make(kernels=[Kernel(10, 30), Kernel(40, 60)])).out
    assert re.search(r"first.*last|edges", said), said


def test_10_the_window_is_the_users_and_printed_beside_the_number(make: Make) -> None:
    path = make(kernels=[Kernel(10**9 * i, 10**9 * i + 5) for i in range(1, 60)])
    assert gaps(path)["devices"][0]["span_ns"] == 58 * 10**9 + 5
    said = run("gaps", path, "--window", "3s..7s").out
    assert "3.00 s" in said and "7.00 s" in said, said


def test_10_kernels_counted_beside_a_window_are_those_in_it(make: Make) -> None:
    path = make(kernels=[Kernel(10 * i, 10 * i + 5) for i in range(1, 60)])
    assert "59 kernels; window" not in run("gaps", path, "--window", "100..200").out


@pytest.mark.parametrize("kind", [EVENT, STREAM_WAIT_EVENT, CONTEXT, 3])
def test_11_host_waits_are_never_gpu_work(make: Make, kind: int) -> None:
    document = gaps(make(kernels=[Kernel(10, 20), Kernel(90, 100)], waits=[Wait(1, 80, kind)]))
    device = document["devices"][0]
    assert (device["span_ns"], device["busy_ns"], device["copy_only_ns"]) == (90, 20, 0)
    assert document["trace"]["span_ns"] == 90


def test_12_nanoseconds_stay_whole(make: Make) -> None:
    """As floats these starts would be equal: 2^53 is passed."""
    late = 2**60
    path = make(kernels=[Kernel(late + 1, late + 2), Kernel(late + 5, late + 6), Kernel(late + 8, late + 10)])
    found = row(gaps(path))
    assert (found["gap_ns"]["min"], found["gap_ns"]["max"], found["white_ns"]) == (2, 3, 5)
    assert found["kernel_ns"]["sum"] == 4


def test_14_the_parts_of_a_gap_add_up_to_it(make: Make) -> None:
    """Gap 20..100; the call runs from 50 to 80."""
    path = make(kernels=[Kernel(10, 20), Kernel(100, 110, id=1)], calls=[Call(50, 80, id=1)])
    assert row(gaps(path))["causes_ns"] == {"host": 30, "call": 30, "queued": 20, "unknown": 0}


def test_15_one_outlier_does_not_speak_for_all(make: Make) -> None:
    starts = [100 * i for i in range(1, 11)]
    path = make(kernels=[Kernel(1, 2), *(Kernel(10**9 + s, 10**9 + s + 90) for s in starts)])
    gap = row(gaps(path))["gap_ns"]
    assert (gap["median"], gap["max"]) == (10, 10**9 + 98) and gap["mean"] > 10**7
    assert row(gaps(path, "none", "--window", "1s.."))["gap_ns"]["max"] == 10


@pytest.mark.parametrize(("call", "cause"), [(Call(90, 95, id=2), "host"), (Call(11, 12, id=2), "queued")])
def test_16_a_late_launch_or_a_late_device(make: Make, call: Call, cause: str) -> None:
    path = make(kernels=[Kernel(10, 20), Kernel(100, 110, id=2)], calls=[call])
    causes = row(gaps(path))["causes_ns"]
    assert max(causes, key=lambda c: causes[c]) == cause
    assert sum(causes.values()) == 80


# B. CUDA graphs


def test_17_opaque_replays_are_said_with_the_flag_to_record_again(make: Make) -> None:
    path = make(
        kernels=[Kernel(1, 5), Kernel(70, 75)],
        opaque_replays=[Replay(10, 30, id=1), Replay(40, 60, id=2)],
        calls=[Call(6, 7, id=1, name="cudaGraphLaunch_v10000")],
        mode="Graph",
    )
    document = gaps(path)
    assert (document["trace"]["graph_trace"], document["trace"]["opaque_replays"]) == ("graph", 2)
    assert document["devices"][0]["busy_ns"] == 4 + 20 + 20 + 5
    assert warned(document)["opaque_replays"] == 2
    assert "--cuda-graph-trace=node" in run("gaps", path).out


def test_17_a_file_of_opaque_replays_alone(make: Make) -> None:
    document = gaps(make(opaque_replays=[Replay(10, 30), Replay(40, 60)]))
    assert (document["trace"]["kernels"], document["trace"]["graph_trace"], document["rows"]) == (
        0,
        "graph",
        [],
    )
    assert document["devices"][0]["idle_ns"] == 10


@pytest.mark.parametrize(
    "name", ["cudaGraphLaunch_v10000", "cuGraphLaunch_ptsz", "cuLaunchKernelEx", "unheardOf", 999]
)
def test_19_any_call_with_the_id_is_the_launch(make: Make, name: object) -> None:
    path = make(kernels=[Kernel(10, 20), Kernel(50, 60, id=4)], calls=[Call(40, 45, id=4, name=name)])
    assert row(gaps(path))["causes_ns"] == {"host": 20, "call": 5, "queued": 5, "unknown": 0}


def test_20_the_launch_of_a_replay_is_charged_once(make: Make) -> None:
    """Two replays of 50 kernels: one boundary between them has a cause, those inside have none."""
    kernels = replay(1, 100, 50) + replay(2, 1000, 50)
    path = make(kernels=kernels, calls=[Call(80, 90, id=1), Call(750, 900, id=2)])
    inside, between = row(gaps(path), "replay"), row(gaps(path), "launch")
    assert (inside["boundaries"], inside["causes_ns"]) == (98, None)
    assert between["causes_ns"] == {"host": 52, "call": 150, "queued": 100, "unknown": 0}


def test_21_a_replay_with_far_fewer_kernels_is_reported(make: Make) -> None:
    path = make(kernels=[*replay(1, 100, 8), *replay(2, 300, 8), *replay(3, 500, 2)])
    assert warned(gaps(path))["under_recorded_replays"] == 1


def test_21_a_replay_that_lacks_one_kernel_is_reported(make: Make) -> None:
    path = make(kernels=[*replay(1, 100, 8), *replay(2, 300, 8), *replay(3, 500, 7)])
    assert warned(gaps(path)).get("under_recorded_replays") == 1


def test_21_replays_most_of_which_lack_kernels_are_reported(make: Make) -> None:
    path = make(kernels=[*replay(1, 100, 8), *replay(2, 300, 2), *replay(3, 500, 2)])
    assert warned(gaps(path))["under_recorded_replays"] == 2


def test_21_two_graphs_of_different_size_are_fine(make: Make) -> None:
    path = make(kernels=[*replay(1, 100, 8), *replay(2, 300, 2, graph=2), *replay(3, 500, 8)])
    assert "under_recorded_replays" not in warned(gaps(path))


def test_21_graphs_of_neighbouring_numbers_are_two_and_launches_are_no_graph(make: Make) -> None:
    launches = [Kernel(600, 610, id=7), Kernel(620, 630, id=7), Kernel(640, 650, id=8)]
    path = make(kernels=[*replay(1, 100, 8, graph=2), *replay(2, 300, 2, graph=3), *launches])
    assert "under_recorded_replays" not in warned(gaps(path))


def test_22_an_opaque_replay_excuses_the_launch_of_its_own_process(make: Make) -> None:
    """Both processes launch a graph under id 1; the replay of process 2 is lost."""
    launch = "cudaGraphLaunch_v10000"
    path = make(
        kernels=[Kernel(1, 2, pid=1), Kernel(1, 2, pid=2)],
        calls=[Call(5, 6, id=1, pid=1, name=launch), Call(5, 6, id=1, pid=2, name=launch)],
        opaque_replays=[Replay(10, 20, id=1, pid=1)],
    )
    assert warned(gaps(path))["launches_without_kernels"] == 1


def test_22_graph_launches_without_their_kernels(make: Make) -> None:
    calls = [Call(10 * i, 10 * i + 1, id=i, name="cudaGraphLaunch_v10000") for i in range(1, 11)]
    path = make(kernels=replay(1, 100, 5), calls=calls)
    assert warned(gaps(path))["launches_without_kernels"] == 9
    answer, notes = run("gaps", path).out.split("\n\n", 1)
    assert "Idle time is unreliable here" in answer and "9 graph launches without a kernel" in notes


def test_22_no_step_no_comparison_of_replays_recorded_in_part(make: Make, tmp_path: Path) -> None:
    """Of three replays of 8 kernels two have lost 6. The page says why it has no budget."""
    path = make(kernels=[*replay(1, 100, 8), *replay(2, 300, 2), *replay(3, 500, 2)])
    whole = build_trace(tmp_path / "whole.sqlite", kernels=[*replay(1, 100, 8), *replay(2, 300, 8)])
    page = tmp_path / "page.html"
    step = run("estimate", "--trace", path)
    assert (step.code, step.out) == (3, "") and "2 of 3 steps" in step.err
    both = run("report", whole, "--compare", path, "-o", page)
    assert both.code == 3 and "2 graph replays have fewer kernels" in both.err and not page.exists()
    assert run("report", whole, "--compare", path, "-o", page, "--force").code == 0
    assert run("report", path, "-o", page).code == 0
    assert "No budget of a step" in page.read_text() and "Idle time is unreliable" in page.read_text()


def test_24_branches_of_a_replay_on_two_streams_are_not_chained(make: Make) -> None:
    a, b = (
        [Kernel(s, s + 10, stream=n, id=1, node=node(1, s)) for s in (t, t + 12)]
        for n, t in ((7, 10), (8, 15))
    )
    found = row(gaps(make(kernels=a + b)), "replay")
    assert (found["boundaries"], found["gap_ns"]["min"], found["gap_ns"]["max"]) == (2, 2, 2)


def test_26_the_order_of_the_rows_says_nothing(make: Make) -> None:
    kernels = [*replay(1, 100, 4), *replay(2, 200, 4), Kernel(300, 310, id=3)]
    calls = [Call(80, 81, id=1), Call(150, 151, id=2), Call(280, 281, id=3)]
    one = gaps(make(kernels=kernels, calls=calls), "pair")
    other = gaps(make(kernels=kernels[::-1], calls=calls[::-1]), "pair")
    by_key = [{str(r["key"]): r for r in document["rows"]} for document in (one, other)]
    assert by_key[0] == by_key[1]


def test_27_a_kernel_before_its_own_call_is_a_bad_join(make: Make) -> None:
    path = make(kernels=[Kernel(10, 20), Kernel(50, 60, id=1)], calls=[Call(55, 58, id=1)])
    document = gaps(path)
    assert warned(document)["kernel_before_call"] == 1
    assert row(document)["causes_ns"] == {"host": 0, "call": 0, "queued": 0, "unknown": 30}


@pytest.mark.parametrize("mode", ["Node", "Graph"])
def test_29_the_mode_of_tracing_stands_beside_the_numbers(make: Make, mode: str) -> None:
    path = make(kernels=[Kernel(1, 2), Kernel(3, 4)], mode=mode)
    assert f"traced by {mode.lower()}" in run("gaps", path).out.splitlines()[0]


def test_29_a_node_level_recording_is_not_compared_with_a_graph_level_one(make: Make, tmp_path: Path) -> None:
    path = make(kernels=replay(1, 100, 3), mode="Node")
    kernels, replays = [Kernel(10, 20), Kernel(30, 40)], [Replay(50, 90)]
    graph = build_trace(tmp_path / "g.sqlite", kernels=kernels, opaque_replays=replays, mode="Graph")
    outcome = run("report", path, "--compare", graph, "-o", tmp_path / "page.html")
    assert outcome.code == 3
    assert "trace.sqlite traced CUDA graphs by node, g.sqlite by graph" in outcome.err


# C. PDL and overlap on one stream


def exported(path: Path) -> list[dict[str, Any]]:
    """The events of the export to Perfetto."""
    out = path.with_name("out.json.gz")
    assert run("export", path, "--perfetto", out).code == 0
    events: list[dict[str, Any]] = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    return events


def test_30_an_overlapping_kernel_is_exported_to_another_track(make: Make) -> None:
    """The two of the report, 3 us + 3.776 us and 5 us + 2 us: on one track Perfetto drops the second."""
    events = exported(make(kernels=[Kernel(3000, 6776, "a"), Kernel(5000, 7000, "b")]))
    a, b = ([e[key] for key in ("ts", "dur")] for e in events if e.get("cat") == "kernel")
    assert (a, b) == ([0, 3.776], [2, 2])
    assert len({e["tid"] for e in events if e.get("cat") == "kernel"}) == 2


def test_31_overlap_through_a_kernel_of_no_length(make: Make) -> None:
    path = make(kernels=[Kernel(10, 30), Kernel(20, 20), Kernel(25, 40)])
    document = gaps(path)
    found = row(document)
    assert (found["overlapping"], found["gap_ns"]["min"], found["overlap_ns"]) == (2, -10, 5)
    assert document["devices"][0]["busy_ns"] == 30


def test_32_a_host_wait_interrupts_a_boundary_and_moves_none(make: Make) -> None:
    kernels = [Kernel(10, 20), Kernel(50, 60), Kernel(70, 80)]
    found = row(gaps(make(kernels=kernels, waits=[Wait(15, 40)])))
    assert (found["boundaries"], found["interrupted"], found["white_ns"]) == (2, 1, 40)


def test_34_the_edge_between_iterations_stands_apart(make: Make) -> None:
    """Two iterations of two kernels: gaps of 1 inside, of 50 between."""
    kernels = [Kernel(s, s + 9, id=s) for s in (100, 110, 169, 179)]
    path = make(**launched(*kernels), ranges=[Range(90, 120, "it"), Range(160, 180, "it")])
    inside = row(gaps(path, "range"), range="it")
    assert (inside["boundaries"], inside["gap_ns"]["max"], inside["kernels"]) == (2, 1, 4)
    assert row(gaps(path))["gap_ns"]["max"] == 50


def test_35_overlap_by_pair_of_kernels(make: Make) -> None:
    """a -> b overlaps in two of three, b -> a never."""
    starts = [("a", 0, 10), ("b", 8, 20), ("a", 25, 35), ("b", 33, 40), ("a", 50, 60), ("b", 61, 70)]
    path = make(kernels=[Kernel(s + 100, e + 100, name) for name, s, e in starts])
    overlapping, never = (row(gaps(path, "pair"), previous=p, next=n) for p, n in (("a", "b"), ("b", "a")))
    assert (overlapping["overlapping"], overlapping["boundaries"], overlapping["gap_ns"]["median"]) == (
        2,
        3,
        -2,
    )
    assert never["overlapping"] == 0
    assert "Overlap seen at 2" in run("gaps", path).out


def test_35_no_overlap_seen_does_not_mean_no_pdl(make: Make) -> None:
    said = run("gaps", make(kernels=[Kernel(1, 2), Kernel(3, 4)])).out
    assert "does not mean no PDL" in said and "none" in said


# D. Processes, GPUs, ranks


def test_37_correlation_ids_repeat_across_processes(make: Make) -> None:
    path = make(
        kernels=[Kernel(s, s + 5, id=9, pid=pid) for pid in (1, 2) for s in (10, 50)],
        calls=[Call(5, 6, id=9, pid=1), Call(30, 40, id=9, pid=2)],
    )
    one, two = (row(gaps(path, "stream"), process=pid)["causes_ns"] for pid in (1, 2))
    assert one == {"host": 0, "call": 0, "queued": 35, "unknown": 0}
    assert two == {"host": 15, "call": 10, "queued": 10, "unknown": 0}


def test_37_hosts_that_share_a_process_id(make: Make) -> None:
    path = make(
        kernels=[Kernel(s, s + 5, id=9, host=host) for host in (0, 1) for s in (10, 50)],
        calls=[Call(5, 6, id=9, host=0), Call(30, 40, id=9, host=1)],
        ranges=[Range(0, 7, "first")],
    )
    assert sorted(r["causes_ns"]["queued"] for r in gaps(path, "stream")["rows"]) == [10, 35]
    assert row(gaps(path, "range"), range="first")["kernels"] == 2


def test_37_a_host_with_ranges_alone_owns_no_kernels_of_another(make: Make) -> None:
    kernels = [Kernel(10, 15, id=1), Kernel(50, 55, id=1)]
    path = make(kernels=kernels, calls=[Call(5, 6, id=1)], ranges=[Range(0, 7, "elsewhere", host=1)])
    assert gaps(path, "range")["rows"] == []


def test_38_a_process_with_calls_and_no_kernels_is_named(make: Make) -> None:
    path = make(kernels=[Kernel(10, 20, pid=100)], calls=[Call(1, 2, pid=100), Call(1, 2, pid=4321)])
    warning = next(w for w in gaps(path)["warnings"] if w["code"] == "process_without_kernels")
    assert warning["count"] == 1
    assert "4321" in warning["message"]


@pytest.mark.parametrize(("silent", "named"), [(8, "207)"), (9, "207 and more)")])
def test_38_eight_such_processes_are_named(make: Make, silent: int, named: str) -> None:
    path = make(kernels=[Kernel(10, 20)], calls=[Call(1, 2, pid=200 + i) for i in range(silent)])
    said = "(200, 201, 202, 203, 204, 205, 206, " + named
    (warning,) = (w for w in gaps(path)["warnings"] if w["code"] == "process_without_kernels")
    assert said in warning["message"] and warning["count"] == silent


def test_38_calls_alone_are_a_diagnosis_not_zero_percent(make: Make) -> None:
    outcome = run("gaps", make(calls=[Call(1, 2)]))
    assert outcome.code == 1 and "no GPU activity" in outcome.err


def test_39_a_kernel_without_a_call_is_kept_and_counted(make: Make) -> None:
    path = make(kernels=[Kernel(10, 20, id=1), Kernel(30, 40, id=77)], calls=[Call(1, 2, id=1)])
    document = gaps(path)
    assert warned(document)["launch_not_in_file"] == 1
    assert row(document)["causes_ns"]["unknown"] == 10
    assert "launch call is not in the file" in run("gaps", path).out


def test_42_device_rows_keep_device_time(make: Make) -> None:
    kernels = [Kernel(100, 110, id=1), Kernel(150, 160, id=2)]
    with_calls = gaps(make(kernels=kernels, calls=[Call(1, 2, id=1), Call(3, 4, id=2)]))
    without = gaps(make(kernels=kernels))
    assert with_calls["devices"] == without["devices"]
    assert row(with_calls)["gap_ns"] == row(without)["gap_ns"]


def test_41_arrows_join_a_kernel_to_the_call_of_its_own_process(make: Make) -> None:
    """Both processes use correlation id 9; an arrow starts in the call and ends where the kernel starts."""
    events = exported(
        make(
            kernels=[Kernel(100, 200, "a", id=9, pid=1), Kernel(400, 500, "b", id=9, pid=2)],
            calls=[Call(10, 20, id=9, pid=1), Call(310, 320, id=9, pid=2)],
        )
    )
    tails, heads = ({e["id"]: e["ts"] for e in events if e["ph"] == kind} for kind in "sf")
    assert sorted((tails[id_], heads[id_]) for id_ in tails) == [(0, 0.09), (0.3, 0.39)]


# E. Schema, names, NVTX


SCHEMAS = [
    None,
    "2.9.1",
    "3.0.0",
    "3.1.7",
    "3.4.0",
    "3.7.2",
    "3.11.1",
    "3.16.1",
    "3.20.3",
    "3.23.3",
    "3.25.0",
    "9.0.0",
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("lazy", [True, False])
def test_43_every_schema_gives_the_same_answer(make: Make, schema: str | None, lazy: bool) -> None:
    path = make(
        **launched(Kernel(100, 110, id=1), Kernel(130, 140, id=2)),
        ranges=[Range(90, 140)],
        schema=schema,
        lazy=lazy,
    )
    document = gaps(path, "range")
    found = row(document, range="step")
    assert (found["white_ns"], found["causes_ns"]["host"], document["warnings"]) == (20, 15, [])


@pytest.mark.parametrize(
    "table", ["StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_EXPORT"]
)
def test_43_a_missing_table_is_not_recorded(make: Make, table: str) -> None:
    path = make(
        **launched(Kernel(100, 110, id=1), Kernel(130, 140, id=2)), ranges=[Range(90, 140)], drop=[table]
    )
    assert row(gaps(path))["white_ns"] == 20


LOST = ["deviceId", "contextId", "streamId", "globalPid", "correlationId", "graphNodeId"]


@pytest.mark.parametrize("column", LOST)
def test_43_a_missing_column_is_reported_as_a_loss(make: Make, column: str) -> None:
    path = make(
        **launched(Kernel(100, 110, id=1), Kernel(130, 140, id=2)),
        drop=[f"CUPTI_ACTIVITY_KIND_KERNEL.{column}"],
    )
    document = gaps(path)
    assert row(document)["white_ns"] == 20
    assert document["warnings"], f"{column} is not there and nothing is said"


def test_43_names_without_a_name_column(make: Make) -> None:
    missing = [f"CUPTI_ACTIVITY_KIND_KERNEL.{c}" for c in ("demangledName", "shortName", "mangledName")]
    document = gaps(make(kernels=[Kernel(1, 2), Kernel(3, 4)], drop=missing), "kernel")
    assert row(document)["key"] == {"kernel": "unnamed kernel"}
    assert any("name" in w["message"] for w in document["warnings"])


@pytest.mark.parametrize("column", ["start", "end"])
def test_43_kernels_without_times_are_no_kernels(make: Make, column: str) -> None:
    path = make(kernels=[Kernel(1, 2), Kernel(3, 4)], drop=[f"CUPTI_ACTIVITY_KIND_KERNEL.{column}"])
    outcome = run("gaps", path)
    assert outcome.code == 1 and outcome.err.count("\n") == 1


@pytest.mark.parametrize("schema", ["2.9.1", "3.4.0"])
def test_44_the_version_is_read_from_either_table(make: Make, schema: str) -> None:
    about = gaps(make(kernels=[Kernel(1, 2)], schema=schema))["trace"]
    assert (about["schema_version"], about["nsys_version"]) == (schema, "2025.3.2.0")


def test_46_a_range_of_another_thread_owns_nothing(make: Make) -> None:
    """The backward pass is launched by thread 5 while the main thread's range is open."""
    path = make(
        kernels=[
            Kernel(100, 110, id=1),
            Kernel(120, 130, id=2),
            Kernel(140, 150, id=3),
            Kernel(160, 170, id=4),
        ],
        calls=[Call(i * 10, i * 10 + 1, id=i, tid=5 * (i > 2)) for i in (1, 2, 3, 4)],
        ranges=[
            Range(0, 90, "main"),
            Range(0, 90, "whole process", kind=START_END),
            Range(25, 90, "back", tid=5),
        ],
    )
    kernels = {r["key"]["range"]: r["kernels"] for r in gaps(path, "range")["rows"]}
    assert kernels == {"main": 2, "back": 2, "whole process": 4}


def test_48_a_range_is_matched_whole_and_its_spread_shown(make: Make) -> None:
    kernels = [Kernel(s, s + 5, id=s) for s in (100, 110, 200, 210)]
    ranges = [Range(90, 120, "step"), Range(190, 230, "step"), Range(94, 96, "step_inner")]
    path = make(**launched(*kernels), ranges=ranges)
    assert gaps(path, "none", "--range", "step")["selection"]["matched_ranges"]["count"] == 2
    assert "2 ranges step (30 ns to 40 ns, median 35 ns)" in run("gaps", path, "--range", "step").out


# F. Bad or lost records, size


IMPOSSIBLE = [
    Kernel(0, 0),
    Kernel(-(2**63), 5),
    Kernel(5, -(2**63)),
    Kernel(30, 20),
    Kernel(None, 5),
    Kernel(5, None),
    Kernel("x", 5),
    Kernel(5, 2**62 + 1),
    Kernel(-(2**62) - 1, 5),
]


@pytest.mark.parametrize("bad", IMPOSSIBLE, ids=lambda k: f"{k.start}-{k.end}")
def test_51_impossible_times_are_dropped_and_counted(make: Make, bad: Kernel) -> None:
    document = gaps(make(kernels=[Kernel(1000, 1010), bad, Kernel(1030, 1040)]))
    assert (document["trace"]["kernels"], document["trace"]["span_ns"], row(document)["white_ns"]) == (
        2,
        40,
        20,
    )
    assert warned(document)["rows_dropped"] == 1


def test_51_nothing_but_impossible_times(make: Make) -> None:
    outcome = run("gaps", make(kernels=[Kernel(0, 0), Kernel(30, 20)]))
    assert outcome.code == 1 and outcome.err.count("\n") == 1


def test_51_times_at_the_limit(make: Make) -> None:
    """Both are allowed; their distance is 2^63, one more than 64 bits hold."""
    outcome = run("gaps", make(kernels=[Kernel(-(2**62), -(2**62)), Kernel(2**62, 2**62)]), "--json")
    if outcome.code == 0:
        assert row(outcome.document)["gap_ns"]["max"] == 2**63
    else:
        assert outcome.code == 1 and outcome.err.count("\n") == 1


def test_51_launches_at_the_start_whose_kernels_were_lost(make: Make) -> None:
    path = make(
        kernels=[Kernel(100, 110, id=3), Kernel(120, 130, id=4)],
        calls=[Call(10 * i, 10 * i + 1, id=i) for i in (1, 2, 3, 4)],
    )
    assert warned(gaps(path)) == {"lost_at_start": 2}
    assert "launches at the start of the recording have no kernel in the file" in run("gaps", path).out


def test_51_launches_that_are_captured_into_a_graph_are_not_lost(make: Make) -> None:
    """One launch is lost; the two of each capture run later, as nodes of a graph."""
    names = ["cudaLaunchKernel", "cudaStreamBeginCapture_v10000", *["cudaLaunchKernel"] * 2]
    names += ["cudaStreamBeginCapture_v10000", *["cudaLaunchKernel"] * 2, "cudaGraphLaunch_v10000"]
    calls = [Call(10 * i, 10 * i + 1, id=i, name=name) for i, name in enumerate(names, 1)]
    path = make(kernels=replay(8, 100, 2), calls=calls)
    assert warned(gaps(path)) == {"lost_at_start": 1}


def test_52_ranges_never_closed_take_no_memory_of_their_own(make: Make) -> None:
    """2,000 open ranges hold 2,000 kernels each: 4,000,000 pairs must not be listed."""
    count = 2000
    kernels = [Kernel(10**6 + 10 * i, 10**6 + 10 * i + 5, id=i) for i in range(count)]
    calls = [Call(10**5 + i, 10**5 + i, id=i) for i in range(count)]
    trace = read(make(kernels=kernels, calls=calls, ranges=[Range(1 + i, None) for i in range(count)]))
    tracemalloc.start()
    report = measure(trace, "range")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.rows[0].boundaries == count - 1
    assert peak < 50_000_000, f"{peak:,} bytes"


# Smaller ones


def test_a_kernel_that_runs_in_a_range_but_was_launched_before_it(make: Make) -> None:
    """TileOPs PR 1725: a flush kernel fell into the window. Launch decides, not the interval."""
    path = make(
        kernels=[Kernel(100, 110, id=1), Kernel(120, 130, id=2), Kernel(140, 150, id=3)],
        calls=[Call(10, 11, id=1), Call(60, 61, id=2), Call(70, 71, id=3)],
        ranges=[Range(50, 150, "step")],
    )
    found = row(gaps(path, "range"), range="step")
    assert (found["kernels"], found["boundaries"]) == (2, 1)


def test_a_range_whose_every_instance_has_impossible_times(make: Make) -> None:
    path = make(kernels=[Kernel(1, 2), Kernel(3, 4)], ranges=[Range(9, 5, "step"), Range(1, 5, "other")])
    outcome = run("gaps", path, "--range", "step")
    assert outcome.code == 1 and "other" in outcome.err


# Smaller


def test_small_a_recording_against_itself(make: Make) -> None:
    trace = read(make(kernels=[Kernel(10, 20), Kernel(30, 40)]))
    assert compare(trace, trace, str).notes == ("Both files hold the same recording.",)


def test_small_a_device_missing_on_one_side(make: Make, tmp_path: Path) -> None:
    path = make(kernels=[Kernel(10, 20), Kernel(30, 40, device=1)])
    other = build_trace(tmp_path / "other.sqlite", kernels=[Kernel(10, 20)])
    notes = compare(read(path), read(other), str).notes
    assert notes == ("2 devices in the first file, 1 in the second.",)


def test_small_a_recording_without_kernels_is_not_compared(make: Make, tmp_path: Path) -> None:
    path = make(kernels=[Kernel(10, 20)])
    other = build_trace(tmp_path / "other.sqlite", copies=[Copy(10, 20)])
    outcome = run("report", path, "--compare", other, "-o", tmp_path / "page.html")
    assert outcome.code == 3 and "other.sqlite: no kernels in the file" in outcome.err


def test_small_a_collective_of_unknown_name_is_shown_and_can_be_named(make: Make) -> None:
    """Of 40 ns in kernels, 10 are a collective that no pattern knows."""
    kernels = [
        Kernel(start, start + ns, name, id=id_, node=node(1, i))
        for id_, at in ((1, 100), (2, 200))
        for i, (start, ns, name) in enumerate([(at, 30, "nvjet_tst"), (at + 40, 10, "house_ring_k")])
    ]
    path = make(kernels=kernels)
    said = run("estimate", "--trace", path).out
    assert "Of class other, which --class CLASS=PATTERN changes: house_ring_k (1 x, 10 ns)." in said
    named = run("estimate", "--trace", path, "--class", "all_reduce=house_ring", "--json").document[
        "measured"
    ]
    assert {r["row"]: r["measured_ns"] for r in named["classes"]} == {"proj_gemm": 30, "all_reduce": 10}
    assert named["unmatched"] == []
    nothing = run("estimate", "--trace", path, "--class", "all_reduce=house_tree")
    assert nothing.code == 1 and "no kernel of the step matches; of no class yet: house_ring_k" in nothing.err


@pytest.mark.parametrize("word", ["all_reduce", "=x", "all_reduce=", "all_reduce=("])
def test_small_a_class_that_cannot_be_read(make: Make, word: str) -> None:
    outcome = run("estimate", "--trace", make(kernels=replay(1, 100, 3)), "--class", word)
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and f"--class {word}" in outcome.err


def test_small_brackets_and_spaces_in_a_file_name(tmp_path: Path) -> None:
    path = build_trace(
        tmp_path / "Flux [19] without head.qdrep.sqlite", kernels=[Kernel(10, 20), Kernel(30, 40)]
    )
    assert row(gaps(path))["white_ns"] == 10
    assert run("report", path, "-o", tmp_path / "[a] page.html").code == 0
    assert run("export", path, "--perfetto", tmp_path / "[a].json.gz").code == 0
