"""A calibration: built from the workloads' results, saved, loaded, refused when broken, found by GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nsys import write_nsys
from tracekit.capture import calibrate, profile, workloads
from tracekit.capture.calibrate import Plan
from tracekit.capture.text import calibration_text
from tracekit.decode import calibration as calibrations
from tracekit.decode.calibration import Calibration, Measured, load_calibration, save_calibration
from tracekit.errors import TracekitError, UnknownNameError

CHAIN = """
import json, sys
words = sys.argv[1:]
traced = "--forwards" in words
timings = [
    {"mode": mode, "kernels": 200, "passes": 20,
     "pass_ns": [(period + 170 * ("--streams" in words)) * 200 + 50_000 * traced] * 5}
    for mode, period in (("graph", 1040), ("graph+pdl", 780))
]
result = {"format": "tracekit.workload-result/1", "timings": timings, "stamps": [],
          "gpu": {"name": "NVIDIA H200", "compute_major": 9, "compute_minor": 0},
          "facts": {"layer_bytes": 262144, "sm_clock_mhz": [1980.0]}}
open(words[words.index("--result") + 1], "w").write(json.dumps(result))
"""
SWEEP = """
import json, sys
words = sys.argv[1:]
stamp = {"mode": "graph", "layer_bytes": 65536, "device_gap_ns": 704.0, "device_gap_p10_ns": 672.0,
         "device_gap_p90_ns": 736.0, "release_ns": 768.0, "tick_ns": 32}
timings = [
    {"mode": mode, "kernels": 50, "passes": 5, "pass_ns": [55_000, 56_000, 57_000]}
    for mode in ("read", "graph:64KiB", "graph:64KiB:stamps", "stream+pdl:4MiB")
]
result = {"format": "tracekit.workload-result/1", "timings": timings, "stamps": [stamp],
          "gpu": {"name": "NVIDIA H200", "compute_major": 9, "compute_minor": 0},
          "facts": {"bandwidth_bytes": 4_000_000_000, "read_pass_ns": [1_000_000] * 3,
                    "copy_pass_ns": [2_000_000, 1_000_000, 4_000_000]}}
open(words[words.index("--result") + 1], "w").write(json.dumps(result))
"""


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    (tmp_path / "fake_chain.py").write_text(CHAIN)
    (tmp_path / "fake_sweep.py").write_text(SWEEP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRACEKIT_NSYS", str(write_nsys(tmp_path / "nsys")))
    monkeypatch.setattr(profile, "_require_gpu", lambda name: None)
    registered = {
        name: workloads.Workload(name, module, "")
        for name, module in (("pdl_chain", "fake_chain"), ("boundary_sweep", "fake_sweep"))
    }
    monkeypatch.setattr(profile, "list_workloads", lambda: tuple(registered.values()))
    monkeypatch.setattr(profile, "find_workload", registered.__getitem__)
    white = {"graph": Measured(96, 64, 128, 3980)}
    return calibrate.calibrate(Plan(), lambda line: None, lambda trace: white if trace.exists() else {})


def test_each_figure_comes_from_the_run_that_measured_it(built: Calibration) -> None:
    assert (built.gpu, built.compute_capability) == ("NVIDIA H200", "9.0")
    assert built.read_bytes_per_s == Measured(4e12, 4e12, 4e12, 3)
    assert built.copy_bytes_per_s == Measured(2e12, 1e12, 4e12, 3)
    assert built.boundary_cost_ns["graph+pdl"] == Measured(780.0, 780.0, 780.0, 5)
    assert built.boundary_cost_several_streams_ns["graph+pdl"] == Measured(950.0, 950.0, 950.0, 5)
    assert built.white_space_ns == {"graph": Measured(96, 64, 128, 3980)}


def test_perturbation_is_traced_less_untraced_a_kernel(built: Calibration) -> None:
    added = {(row.mode, row.level): row.added_ns.median for row in built.perturbation}

    assert added == {(mode, level): 250.0 for mode in ("graph", "graph+pdl") for level in ("graph", "node")}


def test_the_curve_has_a_point_a_size_and_mode_with_its_device_gap(built: Calibration) -> None:
    (point,) = built.curve_of("graph")

    assert (point.layer_bytes, point.period_ns) == (65_536, Measured(1120.0, 1100.0, 1140.0, 3))
    assert point.device_gap_ns == Measured(704.0, 672.0, 736.0, 1)
    (eager,) = built.curve_of("stream+pdl")
    assert (eager.layer_bytes, eager.device_gap_ns) == (4 << 20, None)


def test_it_is_saved_and_loaded(built: Calibration, tmp_path: Path) -> None:
    save_calibration(built, tmp_path / "h200.json")

    assert load_calibration(tmp_path / "h200.json") == built


def test_the_text_names_every_figure(built: Calibration) -> None:
    text = calibration_text(built)

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "boundary cost, graph+pdl 780 ns (780 ns to 780 ns)" in lines
    assert "boundary cost, several streams, graph 1.21 us (1.21 us to 1.21 us)" in lines
    assert "read 4,000 GB/s (4,000 to 4,000)" in lines


@pytest.mark.parametrize(
    "change",
    [
        {"format": "tracekit.calibration/9"},
        {"read_bytes_per_s": 5},
        {"curve": [{}]},
        {"surprise": 1},
        {"curve": None},
    ],
    ids=str,
)
def test_a_broken_one_is_one_line(built: Calibration, tmp_path: Path, change: dict[str, Any]) -> None:
    save_calibration(built, tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_text()) | change
    (tmp_path / "x.json").write_text(json.dumps(document))

    with pytest.raises(TracekitError, match=r"x\.json: is .*run `tracekit calibrate` again"):
        load_calibration(tmp_path / "x.json")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match="cannot be read"):
        load_calibration(tmp_path / "none.json")


def test_what_ships_can_be_read_and_an_unknown_gpu_is_an_error() -> None:
    for name, calibration in calibrations.packaged_calibrations().items():
        assert calibrations.find_calibration(name) == calibration

    with pytest.raises(UnknownNameError, match="no calibration of 'NVIDIA B999' ships"):
        calibrations.find_calibration("NVIDIA B999")
