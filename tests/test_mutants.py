"""What mutation testing found untested in the gap core: trace and answer on one screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.build import CONTEXT, START_END, Call, Copy, Kernel, Range, Replay, Wait, build_trace, node
from tests.reference import Selection as Asked
from tests.reference import reference
from tests.run import GROUPINGS, differences, gaps
from tracekit.analysis.attribution import find_members, match_ranges
from tracekit.analysis.boundaries import find_boundaries, find_causes
from tracekit.analysis.gaps import Selection
from tracekit.analysis.gaps import gaps as measure
from tracekit.analysis.idle import measure_busy
from tracekit.analysis.steps import Step, find_instances, find_largest, find_steps
from tracekit.errors import UnanswerableError, UnknownNameError
from tracekit.readers import read
from tracekit.trace import Trace

Make = Callable[..., Trace]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **tables: read(build_trace(tmp_path / "trace.sqlite", **tables))


# Boundaries and causes


def test_a_wait_for_a_context_interrupts_its_streams_alone(make: Make) -> None:
    """Streams 7 and 8 of context 1 wait; stream 7 of context 2, and of another process, do not."""
    places = [{"stream": 7}, {"stream": 8}, {"context": 2}, {"pid": 200}, {"device": 1}]
    trace = make(
        kernels=[Kernel(start, start + 10, **place) for place in places for start in (0, 50)],
        waits=[Wait(20, 30, kind=CONTEXT)],
    )
    found = zip(trace.kernels.stream, find_boundaries(trace).interrupted, strict=True)
    waited = {astuple(trace.streams[code]) for code, interrupted in found if interrupted}
    assert waited == {(100, 0, 1, 7), (100, 0, 1, 8)}


def test_a_copy_of_another_stream_interrupts_nothing(make: Make) -> None:
    trace = make(
        kernels=[Kernel(start, start + 10, stream=stream) for stream in (7, 8) for start in (0, 50)],
        copies=[Copy(20, 30, stream=8)],
    )
    assert find_boundaries(trace).interrupted.tolist() == [False, False, False, True]


def test_each_stream_has_its_own_interruptions(make: Make) -> None:
    trace = make(
        kernels=[Kernel(start, start + 10, stream=stream) for stream in (7, 8) for start in (0, 50, 100)],
        copies=[Copy(70, 80, stream=8), Copy(20, 30)],
    )
    assert find_boundaries(trace).interrupted.tolist() == [False, True, False, False, False, True]


def test_causes_are_whole_numbers_without_calls_too(make: Make) -> None:
    trace = make(kernels=[Kernel(0, 10), Kernel(30, 40)])
    causes = astuple(find_causes(trace, find_boundaries(trace)))
    assert [column.tolist() for column in causes] == [[0, 0], [0, 0], [0, 0], [0, 20]]
    assert {column.dtype for column in causes} == {np.dtype(np.int64)}
    assert find_boundaries(trace).gap_ns.dtype == np.int64


def test_of_two_heads_that_start_at_once_the_lower_stream_has_it(make: Make) -> None:
    """40 replays on two streams, every boundary of 5 ns."""
    trace = make(
        kernels=[
            Kernel(100 * r + start, 100 * r + start + 5, id=r, node=node(1, stream), stream=stream)
            for r in range(40)
            for stream in (7, 8)
            for start in (0, 10)
        ]
    )
    assert np.flatnonzero(find_boundaries(trace).head).tolist() == list(range(1, 80, 2))


def test_a_kernel_may_start_with_its_call(make: Make) -> None:
    trace = make(
        kernels=[Kernel(0, 10, id=1), Kernel(30, 40, id=2)], calls=[Call(0, 1, id=1), Call(30, 31, id=2)]
    )
    causes = astuple(find_causes(trace, find_boundaries(trace)))
    assert [int(column[1]) for column in causes] == [20, 0, 0, 0]


# Busy and idle


def test_a_window_cuts_copies_as_well(make: Make) -> None:
    trace = make(kernels=[Kernel(0, 10)], copies=[Copy(15, 40)])
    (device,) = measure_busy(trace, (0, 30)).devices
    assert (device.span_ns, device.busy_ns, device.copy_only_ns, device.idle_ns) == (30, 25, 15, 5)


def test_a_gpu_is_busy_when_one_of_its_processes_is(make: Make) -> None:
    """Two processes on one GPU: 0-10 and 30-40, of 40 ns; of a window of 50 ns, 20 as well."""
    trace = make(kernels=[Kernel(0, 10), Kernel(30, 40, pid=200)], device_map=[(100, 0, 0), (200, 0, 0)])
    for window, span in ((None, 40), ((0, 50), 50)):
        (gpu,) = measure_busy(trace, window).gpus
        assert (gpu.span_ns, gpu.busy_ns, gpu.idle_ns) == (span, 20, span - 20)


def test_each_device_has_its_own_activity_in_whatever_order(make: Make) -> None:
    trace = make(
        kernels=[Kernel(0, 10), Kernel(0, 10, device=1), Kernel(100, 105, device=2)],
        copies=[Copy(20, 30, device=1), Copy(40, 43), Copy(50, 55, device=1), Copy(60, 64)],
    )
    busy = [(d.device, d.span_ns, d.busy_ns) for d in measure_busy(trace).devices]
    assert busy == [(0, 64, 17), (1, 55, 25), (2, 5, 5)]


def test_busy_time_is_exact_on_a_clock_of_60_bits(make: Make) -> None:
    now = 2**60 + 1
    trace = make(kernels=[Kernel(now, now + 3), Kernel(now + 5, now + 6, stream=8)])
    (device,) = measure_busy(trace).devices
    assert (device.span_ns, device.busy_ns) == (6, 4)


# Ranges


def instances(trace: Trace) -> list[tuple[str, int, bool]]:
    """Range name, kernel row and whether the boundary into it counts, of every pair."""
    found = find_members(trace, np.arange(len(trace.ranges)))
    names = [trace.range_names[code] for code in trace.ranges.name[found.range_row]]
    return list(zip(names, found.kernel.tolist(), found.continues.tolist(), strict=True))


def called(*starts: int, **place: int) -> list[Call]:
    """Calls at these times, numbered from 1."""
    return [Call(start, start + 1, id=i + 1, **place) for i, start in enumerate(starts)]


def run_at(*starts: int) -> list[Kernel]:
    """Kernels of 5 ns at these times, numbered from 1."""
    return [Kernel(start, start + 5, id=i + 1) for i, start in enumerate(starts)]


def test_a_range_is_matched_by_name_then_without_domain_then_as_a_pattern(make: Make) -> None:
    trace = make(
        kernels=[Kernel(0, 1)],
        ranges=[Range(0, 1, "step"), Range(2, 3, "step", "d"), Range(4, 5, "f(x)"), Range(6, 7, "a:b", "d")],
    )
    wanted = {"step": [0], "d:step": [1], "f(x)": [2], "a:b": [3], "ste.": [0], ".*step": [0, 1]}
    assert {name: match_ranges(trace, name).tolist() for name in wanted} == wanted
    with pytest.raises(UnknownNameError, match=r"matches 'step\('; there is: a"):
        match_ranges(make(kernels=[Kernel(0, 1)], ranges=[Range(0, 1, "a")]), "step(")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "the trace has no NVTX ranges (record with --trace=cuda,nvtx)"),
        ("abc", "there is: a, b, c"),
        ("abcdefghijkl", "there is: a, b, c, d, e, f, g, h, i, j, k, l"),
        ("abcdefghijklm", "there is: a, b, c, d, e, f, g, h, i, j, k, l and 1 more"),
    ],
)
def test_a_range_that_is_not_there_is_answered_with_those_that_are(
    make: Make, names: list[str], said: str
) -> None:
    trace = make(kernels=[Kernel(0, 1)], ranges=[Range(0, 1, name) for name in names])
    with pytest.raises(UnknownNameError) as error:
        match_ranges(trace, "moon")
    assert str(error.value) == f"no NVTX range is called or matches 'moon'; {said}"


def test_a_kernel_without_a_call_is_in_no_range_and_parts_its_neighbours(make: Make) -> None:
    trace = make(
        kernels=run_at(100, 120, 140), calls=[Call(10, 11, id=1), Call(30, 31, id=3)], ranges=[Range(0, 50)]
    )
    assert instances(trace) == [("step", 0, False), ("step", 2, False)]


def test_the_next_thread_number_is_another_thread(make: Make) -> None:
    trace = make(
        kernels=run_at(100, 120),
        calls=[Call(10, 11, id=1, tid=5), Call(20, 21, id=2, tid=6)],
        ranges=[Range(0, 50, tid=5)],
    )
    assert instances(trace) == [("step", 0, False)]


def test_the_kernel_before_it_was_launched_after_the_range(make: Make) -> None:
    """The first kernel to run was launched last: the boundary between them is not the range's."""
    trace = make(kernels=run_at(100, 120), calls=called(60, 20), ranges=[Range(10, 50)])
    assert instances(trace) == [("step", 1, False)]


def test_ranges_of_one_name_inside_another_list_nothing_twice(make: Make) -> None:
    """`a` holds all; of `b` two, one with another that starts with it and one in the middle."""
    trace = make(
        kernels=run_at(100, 110, 120, 130, 140, 150),
        calls=called(10, 20, 30, 40, 50, 60),
        ranges=[
            Range(0, 70, "a"),
            Range(1, 39, "b"),
            Range(2, 15, "b"),
            Range(16, 25, "b"),
            Range(45, 55, "b"),
        ],
    )
    assert sorted(instances(trace)) == [
        *(("a", kernel, kernel > 0) for kernel in range(6)),
        *(("b", kernel, kernel > 0) for kernel in range(3)),
        ("b", 4, False),
    ]


def test_a_kernel_in_two_ranges_of_one_name_counts_once_with_its_boundary(make: Make) -> None:
    """A thread's range holds the second kernel alone, the process's both: the boundary counts."""
    ranges = [Range(low, 40, name, kind=kind) for name in "ab" for low, kind in ((15, 59), (5, START_END))]
    trace = make(kernels=run_at(100, 120), calls=called(10, 20), ranges=ranges)
    rows = [
        (row.key["range"], row.kernels, row.boundaries, row.white_ns) for row in measure(trace, "range").rows
    ]
    assert rows == [("a", 2, 1, 15), ("b", 2, 1, 15)]


# Selecting and grouping


def nested(make: Make) -> Trace:
    """Three kernels launched in `outer`, the last two in `inner`."""
    return make(
        kernels=run_at(100, 110, 130),
        calls=called(10, 20, 30),
        ranges=[Range(0, 50, "outer"), Range(15, 50, "inner")],
    )


def test_of_a_chosen_range_only_its_own_row_is_shown(make: Make) -> None:
    rows = measure(nested(make), "range", Selection(range_name="outer")).rows
    assert [(row.key["range"], row.kernels, row.white_ns) for row in rows] == [("outer", 3, 20)]


@pytest.mark.parametrize("by", ["none", "kernel", "stream", "graph"])
def test_only_the_kernels_chosen_are_counted(make: Make, by: str) -> None:
    (row,) = measure(nested(make), by, Selection(range_name="inner")).rows  # type: ignore[arg-type]
    assert (row.kernels, row.boundaries, row.white_ns, row.kernel_sum_ns) == (2, 1, 15, 10)


def test_a_range_in_a_window_counts_what_is_in_both(make: Make) -> None:
    (row,) = measure(nested(make), "none", Selection(range_name="outer", window=(105, 200))).rows
    assert (row.kernels, row.boundaries, row.white_ns) == (2, 1, 15)


def test_a_window_holds_its_start_and_not_its_end(make: Make) -> None:
    """Kernels every 20 ns from 5: of the window 25..65 those at 25 and 45; open sides reach to the ends."""
    trace = make(kernels=[Kernel(start, start + 10) for start in (5, 25, 45, 65)])
    for window, span, kernels in (((25, 65), 40, 2), ((None, 45), 40, 2), ((25, None), 50, 3)):
        report = measure(trace, "none", Selection(window=window))
        assert (report.span_ns, report.rows[0].kernels) == (span, kernels)


def test_one_process_and_one_device_are_chosen_together(make: Make) -> None:
    trace = make(
        kernels=[
            Kernel(start, start + length, pid=pid, device=device)
            for length, (pid, device) in enumerate([(100, 0), (100, 1), (200, 0), (200, 1)], 1)
            for start in (0, 20)
        ]
    )
    for process, device, durations in ((100, 1, 4), (200, None, 14), (None, 0, 8)):
        report = measure(trace, "none", Selection(process=process, device=device))
        assert report.rows[0].kernel_sum_ns == durations
    for process, device, said in (
        (7, None, "process 7 in the trace; there is: 100, 200"),
        (100, 7, "device 7"),
    ):
        with pytest.raises(UnknownNameError, match=f"^no {said}"):
            measure(trace, "none", Selection(process=process, device=device))


def test_pairs_are_the_usual_grouping(make: Make) -> None:
    trace = make(kernels=[Kernel(0, 1), Kernel(2, 3)])
    assert measure(trace) == measure(trace, "pair")


def two_graphs(path: Path) -> Path:
    """Replays of graphs 1, 2 and 1 on a stream, of 1 and 2 on the next, and launches after each."""
    replays = [(0, 1, 7), (30, 2, 7), (60, 1, 7), (3, 1, 8), (40, 2, 8)]
    inside = [
        Kernel(start + 12 * i, start + 12 * i + 10, f"n{i}", stream, id_, node(graph, i))
        for id_, (start, graph, stream) in enumerate(replays)
        for i in (0, 1)
    ]
    after = [Kernel(start, start + 5, "k", stream) for stream in (7, 8) for start in (100, 110)]
    return build_trace(path / "trace.sqlite", kernels=[*inside, *after])


def test_edges_between_graphs_belong_to_none(tmp_path: Path) -> None:
    rows = gaps(two_graphs(tmp_path), "graph")["rows"]
    found = {
        (r["where"], r["key"]["process"], r["key"]["graph"]): (r["kernels"], r["white_ns"]) for r in rows
    }
    assert found == {
        ("replay", 100, 1): (3, 6),
        ("replay", 100, 2): (2, 4),
        ("launch", 100, None): (7, 8 + 8 + 18 + 5 + 15 + 38 + 5),
    }


@pytest.mark.parametrize("where", ["all", "replay", "launch"])
@pytest.mark.parametrize("by", GROUPINGS)
def test_two_graphs_equal_the_reference(tmp_path: Path, by: str, where: str) -> None:
    path = two_graphs(tmp_path)
    wanted = reference(path, by, Asked(where=where))
    assert differences(gaps(path, by, "--where", where), wanted) == []


@pytest.mark.parametrize("by", GROUPINGS)
def test_no_kernels_at_all_have_no_boundaries(make: Make, by: str) -> None:
    trace = make(opaque_replays=[Replay(0, 10), Replay(20, 30)])
    assert measure(trace, by).rows == ()  # type: ignore[arg-type]


def test_kernels_that_touch_do_not_overlap(make: Make) -> None:
    """Gaps of 0 and -5 ns."""
    (row,) = measure(make(kernels=[Kernel(0, 10), Kernel(10, 20), Kernel(15, 25)]), "none").rows
    assert (row.boundaries, row.overlapping, row.overlapping_median_ns, row.overlap_ns) == (2, 1, -5, 5)


@pytest.mark.parametrize("window", [(50, 60), (60, 60), (70, 60), (10, 15), (15, 20)])
def test_nothing_in_a_window_says_where_there_is_something(make: Make, window: tuple[int, int]) -> None:
    trace = make(kernels=[Kernel(0, 10), Kernel(20, 40)])
    with pytest.raises(UnanswerableError) as error:
        measure(trace, "none", Selection(window=window))
    low, high = window
    assert str(error.value) == (
        f"no GPU activity in the window {low}..{high} ns; the trace has some from 0 to 40 ns"
    )


def test_a_notebook_shows_twenty_rows_and_obeys_no_name(make: Make) -> None:
    trace = make(kernels=[Kernel(10 * i, 10 * i + 5, f"<b>{i}") for i in range(22)])
    shown = measure(trace, "kernel")._repr_html_()
    assert shown.startswith("<p>trace.sqlite: gaps by kernel</p><table")
    assert "&lt;b&gt;1<" in shown and "<b>" not in shown
    assert shown.count("<tr>") == 21 and "<td>...</td>" in shown  # of 21 rows 20, and the dots
    assert "<th>0</th>" not in shown


# Steps


def parts(step: Step) -> dict[str, int]:
    return {name: ns for name, ns in vars(step.budget).items() if ns}


def test_a_kernel_before_its_own_call_has_no_known_cause(make: Make) -> None:
    """After the first kernel 5 ns before one that the trace's first call launched, 19 before a wrong call."""
    trace = make(
        kernels=[Kernel(0, 10, id=2), Kernel(15, 20, id=1), Kernel(39, 40, id=3)],
        calls=[Call(-20, -19, id=1), Call(-15, -14, id=2), Call(50, 51, id=3)],
        ranges=[Range(-30, 60)],
    )
    (step,) = find_steps(trace, "step").steps
    assert parts(step) == {"span_ns": 40, "kernel_ns": 16, "queued_ns": 5, "unknown_ns": 19}


def replays(*starts: int, graph: int = 1, first: int = 1, **place: int) -> list[Kernel]:
    """A replay at each of these times, of two kernels of 5 ns, 3 ns apart."""
    return [
        Kernel(start + 8 * i, start + 8 * i + 5, id=first + r, node=node(graph, i), **place)
        for r, start in enumerate(starts)
        for i in (0, 1)
    ]


def test_a_graph_steps_without_calls_as_well(make: Make) -> None:
    found = find_steps(make(kernels=replays(0, 100)), graph=1)
    assert [parts(step) for step in found.steps] == [{"span_ns": 13, "kernel_ns": 10, "head_ns": 3}] * 2


def test_white_space_between_replays_is_a_launch(make: Make) -> None:
    """A kernel, a replay, a replay, all in one range: 5 and 7 ns before replays, 3 inside each."""
    trace = make(
        kernels=[Kernel(80, 95, id=9), *replays(100, 120)],
        calls=[Call(10, 11, id=9), Call(20, 21, id=1), Call(30, 31, id=2)],
        ranges=[Range(0, 50)],
    )
    (step,) = find_steps(trace, "step").steps
    assert parts(step) == {"span_ns": 53, "kernel_ns": 35, "head_ns": 6, "queued_ns": 12}


def test_a_launch_that_shares_a_replays_number_is_not_inside_it(make: Make) -> None:
    trace = make(
        kernels=[Kernel(100, 105, id=1), Kernel(108, 113, id=1, node=node(1, 0))],
        calls=[Call(10, 11, id=1)],
        ranges=[Range(0, 50)],
    )
    (step,) = find_steps(trace, "step").steps
    assert parts(step) == {"span_ns": 13, "kernel_ns": 10, "queued_ns": 3}


def test_steps_on_another_device_and_before_the_skip_are_counted(make: Make) -> None:
    trace = make(kernels=[*replays(0, 100, 200), *replays(300, first=4, device=1)])
    found = find_steps(trace, graph=1, skip=1)
    assert (len(found.steps), found.skipped, found.elsewhere) == (2, 1, 1)
    assert (found.process, found.device) == (100, 0)


def test_a_step_is_what_repeats(make: Make) -> None:
    """Of graph 1 and range `once` there is one; launches outside are no graph; `twice` wins over both."""
    kernels = [
        *replays(0),
        *replays(100, 200, graph=2, first=2),
        Kernel(300, 305, id=8),
        Kernel(310, 315, id=9),
    ]
    assert find_instances(make(kernels=kernels)).source == "replays of graph 2"
    calls = [Call(10 * id_, 10 * id_ + 1, id=id_) for id_ in (1, 2, 3, 8, 9)]
    ranges = [Range(5, 99, "once"), Range(75, 85, "twice"), Range(86, 99, "twice")]
    assert find_instances(make(kernels=kernels, calls=calls, ranges=ranges)).source == "NVTX range twice"


def largest(trace: Trace) -> tuple[str, list[list[int]]] | None:
    found = find_largest(trace)
    return None if found is None else (found.source, [rows.tolist() for rows in found.kernels])


def test_the_largest_of_what_repeats(make: Make) -> None:
    """A range of two kernels, graph 3 of four, graph 2 of six; then without the largest, and so on."""
    calls = [Call(10 * id_, 10 * id_ + 1, id=id_) for id_ in range(1, 9)]
    ranges = [Range(75, 79, "other"), Range(75, 85, "step"), Range(86, 95, "step")]
    launches = [Kernel(1000, 1005, id=8), Kernel(1010, 1015, id=9)]
    calls = [*calls, Call(90, 91, id=9)]
    three = replays(0, 100, graph=3)
    two = [*replays(200, 300, 400, graph=2, first=3)]
    make = partial(make, calls=calls, ranges=ranges)
    assert largest(make(kernels=[*three, *two, *launches])) == (
        "replays of graph 2",
        [[4, 5], [6, 7], [8, 9]],
    )
    assert largest(make(kernels=[*three, *launches])) == ("replays of graph 3", [[0, 1], [2, 3]])
    assert largest(make(kernels=[*replays(0, graph=3), *launches])) == ("NVTX range step", [[2], [3]])
    assert largest(make(kernels=[*replays(0, graph=3), launches[0]])) is None
    both = [Kernel(0, 5, id=1, node=node(0, 0)), Kernel(9, 12, id=2, node=node(0, 0))]
    assert largest(make(kernels=[*both, *launches])) == ("NVTX range step", [[2], [3]])


def test_the_ranges_that_launched_the_typical_step(make: Make) -> None:
    trace = make(
        kernels=replays(100, 200),
        calls=[Call(10, 11, id=1), Call(20, 21, id=2)],
        ranges=[
            Range(5, 15, "fast", "d"),
            Range(5, 15, "x", "e"),
            Range(16, 25, "slow", "d"),
            Range(0, 30, "d"),
        ],
    )
    assert find_steps(trace, graph=1).find_ranges(trace, "d") == ("fast",)
    assert find_steps(trace, graph=1, skip=1).find_ranges(trace, "d") == ("slow",)


def test_what_could_be_a_step(make: Make) -> None:
    """Eight of each are named; without any, why."""
    ranges = [Range(10 * i + j, 10 * i + j + 4, f"r{i}") for i in range(1, 10) for j in (0, 5)]
    calls = [Call(r.start, r.start, id=r.start) for r in ranges]
    launches = [Kernel(1000 + 9 * i, 1005 + 9 * i, id=call.id) for i, call in enumerate(calls)]
    graphs = [k for g in range(1, 10) for k in replays(2000 * g, graph=g, first=1000 + g)]
    named = [*(f"--range 'r{i}'" for i in range(1, 9)), *(f"--graph {g} (1 replays)" for g in range(1, 9))]
    for trace, said in (
        (make(kernels=[*launches, *graphs], calls=calls, ranges=ranges), "there is: " + ", ".join(named)),
        (
            make(kernels=[Kernel(0, 1)], opaque_replays=[Replay(0, 9)]),
            "the replays are opaque: record with --cuda-graph-trace=node",
        ),
        (
            make(kernels=[Kernel(0, 1)]),
            "the trace has no NVTX range around its launches and no graph replays; name one with nvtx",
        ),
    ):
        with pytest.raises(UnknownNameError) as error:
            find_instances(trace)
        assert str(error.value) == f"which steps? {said}"
