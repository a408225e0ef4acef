"""The workloads' host side on a GPU in NumPy: what they launch, capture, check, print and write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests import fake_gpu
from tracekit.capture.workload_result import read_workload_result
from workloads import boundary_sweep, pdl_chain
from workloads.boundary_sweep import Shape
from workloads.errors import WorkloadError, WrongResultError
from workloads.result import Result, write_result

CHAIN = pdl_chain.Options(layers=5, size=100, block=32, forwards=2, repeats=3)
SWEEP = boundary_sweep.Options(
    smallest_bytes=16 * 1024,
    largest_bytes=64 * 1024,
    layers=4,
    passes=2,
    repeats=3,
    block=64,
    blocks_per_sm=4,
)


def test_the_chain_runs_all_four_modes_and_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = fake_gpu.install(monkeypatch)

    result = pdl_chain.run(CHAIN)

    assert [timing.mode for timing in result.timings] == ["stream", "stream+pdl", "graph", "graph+pdl"]
    assert all(timing.pass_ns == (750_000,) * 3 for timing in result.timings)  # 1.5 ms for 2 forwards
    assert result.facts["programmatic_edges"] == {"stream": 0, "stream+pdl": 0, "graph": 0, "graph+pdl": 4}
    # four modes x (a warm-up + 3 x 2 forwards) x 5 layers, and the spins before and after
    assert len(driver.launches) == 4 * 7 * 5 + 2
    assert capsys.readouterr().out.count("PASS") == 4


def test_pdl_is_set_in_the_pdl_modes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_gpu.install(monkeypatch)

    pdl_chain.run(CHAIN)

    pdl = [launched.pdl for launched in driver.launches[1:-1]]
    assert pdl == [False] * 35 + [True] * 35 + [False] * 35 + [True] * 35


def test_other_streams_launch_the_chain_once_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_gpu.install(monkeypatch)

    pdl_chain.run(pdl_chain.Options(**{**vars(CHAIN), "streams": 3}))

    assert len(driver.launches) == 2 * 5 + 4 * 7 * 5 + 2


def test_a_graph_built_by_hand_has_the_same_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.install(monkeypatch)

    result = pdl_chain.run(pdl_chain.Options(**{**vars(CHAIN), "manual_graph": True}))

    assert result.facts["programmatic_edges"]["graph+pdl"] == 4
    assert result.facts["programmatic_edges"]["graph"] == 0


def test_before_hopper_every_mode_runs_without_pdl_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = fake_gpu.install(monkeypatch, compute_major=8)

    pdl_chain.run(CHAIN)

    assert not any(launched.pdl for launched in driver.launches)
    assert "note: PDL needs sm_90+, this GPU is sm_80" in capsys.readouterr().out


def test_a_wrong_element_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = fake_gpu.install(monkeypatch)
    driver.breaks_wait = True

    with pytest.raises(WrongResultError, match=r"FAIL stream: element 7 is np.float32\(99.0\), expected"):
        pdl_chain.run(CHAIN)


def test_a_wrong_element_ends_the_program_with_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpu.install(monkeypatch).breaks_wait = True

    with pytest.raises(SystemExit) as stop:
        pdl_chain.main(layers=3, size=64, forwards=1, repeats=1)

    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("error: FAIL stream: element 7")


def test_the_sweep_checks_every_size_mode_and_stamp(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_gpu.install(monkeypatch)

    result = boundary_sweep.run(SWEEP)

    modes = [timing.mode for timing in result.timings if "32KiB" in timing.mode]
    assert modes == [
        "stream:32KiB",
        "stream+pdl:32KiB",
        "graph:32KiB",
        "graph:32KiB:stamps",
        "graph+pdl:32KiB",
        "graph+pdl:32KiB:stamps",
    ]
    assert {stamp.device_gap_ns for stamp in result.stamps} == {704.0}
    assert {stamp.release_ns for stamp in result.stamps} == {768.0}
    assert capsys.readouterr().out.count("PASS") == 3
    assert set(result.facts["share_of_read"]) == {"16KiB", "32KiB", "64KiB"}


@pytest.mark.parametrize(
    "shape",
    [Shape(65536, 5, 16, 256), Shape(65536, 3, 3, 96), Shape(16384, 4, 7, 512)],
    ids=["one load a thread", "uneven", "more threads than vectors"],
)
def test_the_closed_form_equals_the_sum_word_by_word(shape: Shape) -> None:
    state = np.zeros(shape.warps, dtype=np.uint64)
    for layer in range(shape.layers):
        words = np.arange(shape.layer_bytes // 4, dtype=np.uint64) + np.uint64(layer * shape.layer_bytes // 4)
        words = (words * np.uint64(boundary_sweep.MULTIPLIER) + np.uint64(1)) % np.uint64(2**32)
        threads = np.zeros(shape.grid * shape.block, dtype=np.uint64)
        np.add.at(threads, np.arange(shape.vectors) % len(threads), words.reshape(-1, 4).sum(axis=1))
        state = 3 * np.roll(state, -(shape.block // 32)) + threads.reshape(-1, 32).sum(axis=1)
        state %= np.uint64(2**32)

    assert np.array_equal(boundary_sweep.expected_output(shape), state)


def test_a_result_file_is_what_the_recorder_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_gpu.install(monkeypatch)
    result: Result = boundary_sweep.run(SWEEP)

    write_result(result, tmp_path / "result.json")
    read = read_workload_result(tmp_path / "result.json", "untraced")

    assert json.loads((tmp_path / "result.json").read_text())["format"] == "tracekit.workload-result/1"
    assert [timing.mode for timing in read.timings] == [timing.mode for timing in result.timings]
    assert read.timings[0].level == "untraced"
    assert len(read.stamps) == 6


@pytest.mark.parametrize(
    "options",
    [{"smallest_bytes": 65535}, {"block": 48}, {"passes": 0}, {"smallest_bytes": 1 << 30}, {"layers": -1}],
    ids=str,
)
def test_impossible_sweeps_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(WorkloadError):
        boundary_sweep.require_possible(boundary_sweep.Options(**options))  # type: ignore[arg-type]
