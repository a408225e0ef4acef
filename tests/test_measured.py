"""The estimate held against a traced step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build import Call, Gpu, Kernel, build_trace, node
from tests.run import run
from tracekit import read
from tracekit.analysis.boundaries import find_boundaries
from tracekit.analysis.steps import find_steps
from tracekit.decode.calibration import Calibration, CurvePoint, Measured, find_calibration
from tracekit.decode.estimate import Machine, StepEstimate, estimate_step
from tracekit.decode.gpus import gpu_of_bandwidth
from tracekit.decode.kernels import Step
from tracekit.decode.measured import Question, Reading, list_readings, read_white_space, sum_curve
from tracekit.decode.models import load_model

HF_COMPILE = Path(__file__).parents[1] / "sample_traces" / "hf_compile.sqlite"


def one(value: float) -> Measured:
    return Measured(value, value, value, 1)


def calibration(points: dict[int, float], **costs: float) -> Calibration:
    return Calibration(
        gpu="Test GPU",
        compute_capability="9.0",
        driver=None,
        cuda=None,
        date="2026-01-01",
        sm_clock_mhz=(),
        read_bytes_per_s=one(1e12),
        copy_bytes_per_s=one(1e12),
        empty_layer_bytes=1,
        boundary_cost_ns={mode: one(cost) for mode, cost in costs.items()},
        white_space_ns={},
        perturbation=(),
        curve=tuple(CurvePoint("graph", size, one(period), None) for size, period in points.items()),
        commands=(),
        versions={},
    )


@pytest.fixture
def megakernel() -> StepEstimate:
    """One kernel that moves the bytes of a whole Qwen3-0.6B step, at 1 TB/s."""
    step = Step(load_model("Qwen3-0.6B"), fusion="megakernel")
    return estimate_step(step, Machine(gpu_of_bandwidth(10**12, "test"), efficiency=1.0))


def test_the_curve_is_linear_between_sizes_and_keeps_its_slope_beyond(megakernel: StepEstimate) -> None:
    """At 1 TB/s a byte takes 0.001 ns: the last two points have that slope, so the sum is 500 + bytes."""
    curve = calibration({0: 700, 1_000_000: 1_500, 2_000_000: 2_500})
    assert sum_curve(curve, megakernel, "graph") == pytest.approx(500 + megakernel.data_ns)
    assert sum_curve(curve, megakernel, "graph+pdl") is None


def test_the_readings_of_g_are_named(megakernel: StepEstimate) -> None:
    question = Question(megakernel, (500,), calibration({}, **{"graph": 1_050, "graph+pdl": 787}))
    white = Reading("white space", 96, "in this trace")
    named = [(r.name, r.gap_ns) for r in list_readings(question, white, overlaps=False)]
    assert named == [("assumed 0.5 us", 500), ("white space", 96), ("boundary cost", 1_050)]
    with_pdl = list_readings(question, white, overlaps=True)[-1]
    assert (with_pdl.gap_ns, "mode graph+pdl" in with_pdl.source) == (787, True)


def test_overlap_counts_as_no_white_space(tmp_path: Path) -> None:
    """Gaps of 20, -5 and 10 ns inside a replay: the median of 20, 0 and 10."""
    times = [(100, 110), (130, 140), (135, 150), (160, 170)]
    kernels = [Kernel(*time, id=1, node=node(1, i)) for i, time in enumerate(times)]
    trace = read(build_trace(tmp_path / "x.sqlite", kernels=kernels, calls=[Call(50, 60, id=1)]))
    assert read_white_space(find_boundaries(trace), find_steps(trace, graph=1)).gap_ns == 10


def test_the_torch_compile_step_against_every_reading() -> None:
    """What the README shows, as data: budget, classes, predictions and their errors."""
    options = ("--model", "Qwen3-0.6B", "--gap-us", "1", "--untraced-us", "2383", "--json")
    measured = run("estimate", "--trace", HF_COMPILE, *options).document["measured"]
    assert (measured["steps"], measured["kernels"], measured["target_ns"]) == (16, 566, 2_383_000)
    parts = {name: ns for name, ns in measured["budget"].items() if name != "span_ns"}
    assert sum(parts.values()) == measured["budget"]["span_ns"]
    kernel_ns = sum(row["measured_ns"] for row in measured["classes"])
    assert measured["other_ns"] <= 0.05 * kernel_ns
    assert sum(row["kernels"] for row in measured["classes"]) == 566
    by_name = {(p["reading"], p["kernels"]): p for p in measured["predictions"]}
    cost = find_calibration("NVIDIA H200").boundary_cost_ns["graph"].median
    prediction = by_name["boundary cost", 566]
    assert prediction["additive_ns"] == pytest.approx(measured["data_ns"] + 566 * cost)
    assert prediction["additive_error"] == pytest.approx(prediction["additive_ns"] / 2_383_000 - 1)
    assert {"assumed 1 us", "white space", "boundary cost", "curve, graph"} <= {name for name, _ in by_name}


def test_the_sidecar_gives_the_untraced_time(tmp_path: Path) -> None:
    """Graph 2 of the recorded chain is the mode `graph`: a pass of 200 kernels took 208 us untraced."""
    sample = Path(__file__).parents[1] / "sample_traces" / "pdl_chain_profiled.sqlite"
    measured = run("estimate", "--trace", sample, "--graph", 2, "--json").document["measured"]
    assert measured["target"] == "the untraced step"
    assert measured["target_ns"] == pytest.approx(208_187, abs=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--range", "moon"), "no NVTX range is called or matches 'moon'; there is: decode_step"),
        (("--model", "GPT-7"), "GPT-7"),
        (("--model", "Qwen3-0.6B", "--gpu", "H300"), "H300"),
        (("--skip", 16), "16 steps, none left"),
    ],
)
def test_an_unknown_name_lists_what_there_is(options: tuple[object, ...], said: str) -> None:
    outcome = run("estimate", "--trace", HF_COMPILE, *options)
    assert outcome.code in (1, 3)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_trace_of_an_unknown_gpu_uses_the_recorded_bandwidth(tmp_path: Path) -> None:
    kernels = [Kernel(10 * i, 10 * i + 5, id=i, node=node(1, 0)) for i in (1, 2, 3)]
    path = build_trace(tmp_path / "x.sqlite", kernels=kernels, gpus=[Gpu(name="NVIDIA X1", bandwidth=10**12)])
    document = run("estimate", "--trace", path, "--model", "Qwen3-0.6B", "--json").document
    assert document["steps"][0]["peak_bandwidth_bytes_per_s"] == 10**12


def test_a_boundary_cost_larger_than_the_step_says_nothing_of_boundaries(tmp_path: Path) -> None:
    """Three kernels in 15 ns cannot have cost 1,041 ns each: no what-if goes below zero."""
    kernels = [
        Kernel(100 * r + 5 * i, 100 * r + 5 * i + 5, id=r, node=node(1, i)) for r in (1, 2) for i in range(3)
    ]
    path = build_trace(tmp_path / "x.sqlite", kernels=kernels, gpus=[Gpu()])
    measured = run("estimate", "--trace", path, "--json").document["measured"]
    assert measured["what_if"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--skip", 1), "--skip goes with --trace"),
        (("--untraced-us", 5), "--untraced-us goes with --trace"),
        (("--trace", HF_COMPILE, "--plot", "x.html"), "--plot does not go with --trace"),
        (("--trace", HF_COMPILE, "--batch", 2), "--batch and --context go with --model"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(options: tuple[object, ...], said: str) -> None:
    outcome = run("estimate", *options)
    assert (outcome.code, said in outcome.err) == (2, True)
