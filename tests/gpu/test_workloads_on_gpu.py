"""The workloads on a real GPU: each run checks itself against NumPy; here is what it must also be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.gpu.programs import period_ns, run_workload

pytestmark = pytest.mark.gpu
QUICK = ("--forwards", "5", "--repeats", "3")


def has_pdl(result: dict[str, dict[str, int]]) -> bool:
    return result["gpu"]["compute_major"] >= 9


def test_the_chain_passes_in_four_modes_and_capture_makes_programmatic_edges(tmp_path: Path) -> None:
    result = run_workload(tmp_path, "pdl_chain", *QUICK)

    assert [row["mode"] for row in result["timings"]] == ["stream", "stream+pdl", "graph", "graph+pdl"]
    edges = result["facts"]["programmatic_edges"]
    assert (edges["graph"], edges["graph+pdl"]) == (0, 199 if has_pdl(result) else 0)


def test_a_graph_takes_the_host_out_and_pdl_shortens_the_boundary(tmp_path: Path) -> None:
    result = run_workload(tmp_path, "pdl_chain")

    assert period_ns(result, "graph") < period_ns(result, "stream") / 3
    if has_pdl(result):
        assert period_ns(result, "graph+pdl") < 0.9 * period_ns(result, "graph")


def test_the_graph_built_by_hand_is_as_fast_as_the_captured_one(tmp_path: Path) -> None:
    by_hand = run_workload(tmp_path, "pdl_chain", "--manual-graph")
    captured = run_workload(tmp_path, "pdl_chain")

    assert by_hand["facts"]["programmatic_edges"] == captured["facts"]["programmatic_edges"]
    for mode in ("graph", "graph+pdl"):
        assert period_ns(by_hand, mode) == pytest.approx(period_ns(captured, mode), rel=0.1)


@pytest.mark.parametrize("trigger", ["early", "late", "none"])
@pytest.mark.parametrize("graph", [(), ("--manual-graph",)], ids=["captured", "by hand"])
def test_every_trigger_gives_the_right_result(tmp_path: Path, trigger: str, graph: tuple[str, ...]) -> None:
    run_workload(tmp_path, "pdl_chain", *QUICK, "--trigger", trigger, *graph)


@pytest.mark.parametrize(
    "options",
    [
        ("--size", "1"),
        ("--size", "1001", "--block", "96"),
        ("--layers", "1"),
        ("--layers", "2"),
        ("--size", "4000000"),
        ("--streams", "3"),
    ],
    ids=" ".join,
)
def test_odd_sizes_pass(tmp_path: Path, options: tuple[str, ...]) -> None:
    run_workload(tmp_path, "pdl_chain", *QUICK, *options)


def test_weights_as_the_handbook_declares_them_pass(tmp_path: Path) -> None:
    run_workload(tmp_path, "pdl_chain", *QUICK, "--read-only-weights")


def test_the_sweep_passes_and_its_stamps_make_sense(tmp_path: Path) -> None:
    result = run_workload(tmp_path, "boundary_sweep", "--largest-mib", "4", "--repeats", "3", "--passes", "2")

    assert len(result["stamps"]) == 2 * 7
    for stamp in result["stamps"]:
        assert -20_000 < stamp["device_gap_ns"] < 20_000
        # nothing is released before the last block of the kernel ahead has ended, give or take a tick
        assert stamp["release_ns"] > -2 * stamp["tick_ns"]
        assert 0 < stamp["tick_ns"] <= 1_100


def test_a_large_layer_reaches_the_read_bandwidth(tmp_path: Path) -> None:
    result = run_workload(tmp_path, "boundary_sweep", "--smallest-kib", str(256 * 1024), "--no-eager")

    assert result["facts"]["share_of_read"]["256MiB"] >= 0.9


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_chain_passes(tmp_path: Path) -> None:
    run_workload(tmp_path, "triton_pdl_chain", *QUICK)
