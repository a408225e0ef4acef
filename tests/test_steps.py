"""Steps and their budgets: the trace and the answer on one screen."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import Call, Copy, Kernel, Range, build_trace, node
from tracekit import read
from tracekit.analysis.steps import PARTS, Step, Steps, find_steps
from tracekit.errors import UnanswerableError, UnknownNameError

HF_COMPILE = Path(__file__).parents[1] / "sample_traces" / "hf_compile.sqlite"


def budget(step: Step) -> dict[str, int]:
    """The parts that are not zero, and the span."""
    return {name: ns for name, ns in asdict(step.budget).items() if ns}


def steps_of(path: Path, **tables: Any) -> Steps:
    return find_steps(read(build_trace(path / "x.sqlite", **tables)), range_name="step")


def test_white_space_before_a_launch_is_cut_at_its_call(tmp_path: Path) -> None:
    """Kernels 100-110 and 150-160; the second one's call runs 115-135: 5 host, 20 call, 15 queued."""
    found = steps_of(
        tmp_path,
        kernels=[Kernel(100, 110, id=1), Kernel(150, 160, id=2)],
        calls=[Call(90, 95, id=1), Call(115, 135, id=2)],
        ranges=[Range(80, 140)],
    )
    assert budget(found.typical) == {
        "span_ns": 60,
        "kernel_ns": 20,
        "host_ns": 5,
        "call_ns": 20,
        "queued_ns": 15,
    }


def test_a_replay_has_a_head_and_white_space(tmp_path: Path) -> None:
    """One replay of four nodes with gaps of 30 (the head), 2 and -5 ns."""
    kernels = [
        Kernel(start, end, id=1, node=node(1, i))
        for i, (start, end) in enumerate([(100, 110), (140, 150), (152, 162), (157, 170)])
    ]
    found = steps_of(tmp_path, kernels=kernels, calls=[Call(90, 95, id=1)], ranges=[Range(80, 200)])
    assert budget(found.typical) == {"span_ns": 70, "kernel_ns": 38, "head_ns": 30, "replay_ns": 2}


def test_a_copy_in_the_white_space_is_said_apart(tmp_path: Path) -> None:
    """Between two kernels 20 ns apart a copy runs for 8 ns: 12 ns are left, all after the call."""
    found = steps_of(
        tmp_path,
        kernels=[Kernel(100, 110, id=1), Kernel(130, 140, id=2)],
        calls=[Call(50, 55, id=1), Call(60, 65, id=2)],
        copies=[Copy(115, 123)],
        ranges=[Range(40, 70)],
    )
    assert budget(found.typical) == {"span_ns": 40, "kernel_ns": 20, "copy_ns": 8, "queued_ns": 12}


def test_two_streams_share_the_device(tmp_path: Path) -> None:
    """A kernel on another stream fills the gap: nothing is idle."""
    found = steps_of(
        tmp_path,
        kernels=[Kernel(100, 110, id=1), Kernel(105, 125, id=2, stream=8), Kernel(120, 130, id=3)],
        calls=[Call(50, 51, id=1), Call(52, 53, id=2), Call(54, 55, id=3)],
        ranges=[Range(40, 70)],
    )
    assert budget(found.typical) == {"span_ns": 30, "kernel_ns": 30}


def test_a_step_is_a_replay_where_no_range_repeats(tmp_path: Path) -> None:
    kernels = [
        Kernel(100 * r + 10 * i, 100 * r + 10 * i + 5, id=r, node=node(3, i)) for r in (1, 2) for i in (0, 1)
    ]
    path = build_trace(tmp_path / "x.sqlite", kernels=kernels, calls=[Call(50, 51, id=1), Call(60, 61, id=2)])
    found = find_steps(read(path))
    assert (found.source, len(found.steps)) == ("replays of graph 3", 2)
    assert found.spans_ns.tolist() == [15, 15]
    assert found.periods_ns.tolist() == [100]


def test_the_typical_step_is_the_median_one(tmp_path: Path) -> None:
    """Spans of 30, 10 and 20 ns: the third is typical. Skipping one leaves 10 and 20: the shorter."""
    spans = {100: 30, 200: 10, 300: 20}
    path = build_trace(
        tmp_path / "x.sqlite",
        kernels=[Kernel(start, start + span, id=start) for start, span in spans.items()],
        calls=[Call(start - 10, start - 5, id=start) for start in spans],
        ranges=[Range(start - 20, start) for start in spans],
    )
    assert find_steps(read(path), "step").typical.start_ns == 300
    assert find_steps(read(path), "step", skip=1).typical.start_ns == 200


def test_what_cannot_be_chosen_lists_what_there_is(tmp_path: Path) -> None:
    kernels = [Kernel(10 * i, 10 * i + 5, id=i, node=node(i % 2, 0)) for i in range(1, 5)]
    path = build_trace(tmp_path / "x.sqlite", kernels=kernels)
    with pytest.raises(UnknownNameError, match=r"--graph 0 \(2 replays\), --graph 1 \(2 replays\)"):
        find_steps(read(path))
    with pytest.raises(UnknownNameError, match="no replay of graph 9"):
        find_steps(read(path), graph=9)
    with pytest.raises(UnknownNameError, match="no NVTX ranges"):
        find_steps(read(path), "moon")
    with pytest.raises(UnanswerableError, match="2 steps, none left after skipping 2"):
        find_steps(read(path), graph=1, skip=2)


def test_a_range_without_kernels_is_no_step(tmp_path: Path) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=[Kernel(1, 2)], ranges=[Range(0, 9)])
    with pytest.raises(UnanswerableError, match="no kernel was launched in it"):
        find_steps(read(path), "step")


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 40), st.sampled_from([7, 8]), st.integers(0, 320)),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=4),
)
def test_every_budget_adds_up(
    tmp_path_factory: pytest.TempPathFactory,
    kernels: list[tuple[int, int, int, int]],
    copies: list[tuple[int, int]],
) -> None:
    """Any kernels on two streams, calls at any time, copies anywhere: none is lost or counts twice."""
    path = build_trace(
        tmp_path_factory.mktemp("steps") / "x.sqlite",
        kernels=[
            Kernel(1000 + start, 1000 + start + length, id=i, stream=stream)
            for i, (start, length, stream, _) in enumerate(kernels)
        ],
        calls=[Call(900 + call, 905 + call, id=i) for i, (*_, call) in enumerate(kernels)],
        copies=[Copy(1000 + start, 1000 + start + length) for start, length in copies],
        ranges=[Range(0, 5000)],
    )
    (step,) = find_steps(read(path), "step").steps
    assert (
        sum(getattr(step.budget, part) for part in PARTS)
        == step.budget.span_ns
        == step.end_ns - step.start_ns
    )
    assert min(getattr(step.budget, part) for part in PARTS) >= 0


def test_the_torch_compile_step_is_what_was_measured() -> None:
    """docs/measured.md: 566 kernels a step, about 2,110 us in kernels, about 300 us of white space."""
    found = find_steps(read(HF_COMPILE))
    assert (found.source, len(found.steps)) == ("NVTX range decode_step", 16)
    assert {len(step.kernels) for step in found.steps} == {566}
    typical = found.typical.budget
    assert typical.kernel_ns == pytest.approx(2_110_000, rel=0.01)
    assert typical.replay_ns + typical.head_ns == pytest.approx(290_000, rel=0.03)
    assert all(sum(getattr(s.budget, p) for p in PARTS) == s.budget.span_ns for s in found.steps)


def test_a_step_of_replays_recorded_in_part_is_refused(tmp_path: Path) -> None:
    """Three replays of a graph of three nodes; of two of them the last kernel is missing."""
    starts = {start: start // 100 for start in (100, 110, 120, 200, 210, 220, 300, 310, 320)}
    kernels = [Kernel(s, s + 5, id=replay, node=node(1, s % 100)) for s, replay in starts.items()]
    whole = build_trace(tmp_path / "whole.sqlite", kernels=kernels)
    in_part = build_trace(tmp_path / "part.sqlite", kernels=[*kernels[:2], *kernels[3:5], *kernels[6:]])
    assert len(find_steps(read(whole)).typical.kernels) == 3
    with pytest.raises(UnanswerableError) as refusal:
        find_steps(read(in_part))
    assert refusal.value.exit_code == 3
    assert str(refusal.value) == (
        "replays of graph 1: 2 of 3 steps, the typical one among them, hold a graph replay with fewer "
        "kernels than others of its graph: the rest was not recorded, and the step's budget would be wrong; "
        "record again, for a shorter time"
    )


def test_a_range_around_a_replay_recorded_in_part_is_refused_too(tmp_path: Path) -> None:
    """Three steps of one replay each; of the whole graph's three kernels one or two replays lack the last."""

    def steps_with(whole: int) -> Steps:
        sizes = {replay: 3 if replay <= whole else 2 for replay in (1, 2, 3)}
        starts = [(100 * replay + 10 * i, replay, i) for replay, size in sizes.items() for i in range(size)]
        return steps_of(
            tmp_path,
            kernels=[Kernel(start, start + 5, id=replay, node=node(1, i)) for start, replay, i in starts],
            calls=[Call(100 * replay - 10, 100 * replay - 5, id=replay) for replay in sizes],
            ranges=[Range(100 * replay - 20, 100 * replay + 60) for replay in sizes],
        )

    assert [steps_with(whole).partial for whole in (3, 2)] == [0, 1]
    with pytest.raises(UnanswerableError, match="NVTX range step: 2 of 3 steps"):
        steps_with(1)
