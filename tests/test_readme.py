"""The README's sessions are real: each is run again."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tracekit import gaps, read
from tracekit.capture.sidecar import read_sidecar, sidecar_path
from tracekit.cli import main
from tracekit.decode.calibration import find_calibration

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SESSIONS = re.findall(r"```console\n(\$ tracekit [^\n]*)\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_sessions() -> None:
    assert len(SESSIONS) >= 2


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints, run from the project's root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main(shlex.split(command)[2:]) == 0
    return capsys.readouterr().out.rstrip("\n")


@pytest.mark.skipif("TRACEKIT_RENEW_GOLDEN" not in os.environ, reason="renews the README, when asked to")
def test_renew_the_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    """A session that ends in [...] keeps as many lines as it has."""
    text = README
    for command, shown in SESSIONS:
        lines = printed(command, capsys).split("\n")
        if shown.endswith("[...]\n"):
            lines = [*lines[: shown.count("\n") - 1], "[...]"]
        text = text.replace(f"{command}\n{shown}", "\n".join([command, *lines, ""]))
    (ROOT / "README.md").write_text(text)


@pytest.mark.parametrize(("command", "shown"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_a_session_prints_what_the_readme_shows(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start, dots, _ = shown.rstrip("\n").partition("\n[...]")
    out = printed(command, capsys)
    assert out.startswith(start) if dots else out == start


def test_the_table_of_the_four_modes_is_what_was_recorded() -> None:
    trace = ROOT / "sample_traces" / "pdl_chain_profiled.sqlite"
    sidecar = read_sidecar(sidecar_path(trace))
    costs = find_calibration("NVIDIA H200").boundary_cost_ns
    rows = {str(row.key["range"]): row for row in gaps(read(trace), by="range").rows if not row.head_ns}
    rows |= {str(row.key["range"]): row for row in gaps(read(trace), by="range").rows if row.head_ns}
    for mode in ("stream", "stream+pdl", "graph", "graph+pdl"):
        timings = [sidecar.timing(mode, level) for level in ("untraced", "graph", "node")]
        each = [t.pass_ns / t.kernels for t in timings if t is not None and t.kernels]
        figures = [*each, rows[f"tracekit:{mode}"].gap_ns.median, costs[mode].median]
        line = " | ".join([f"| {mode}", *(f"{figure:,.0f}" for figure in figures)])
        assert line in README


def test_the_device_gap_is_what_was_stamped() -> None:
    sidecar = read_sidecar(sidecar_path(ROOT / "sample_traces" / "boundary_sweep.sqlite"))
    smallest = {s.mode: s.device_gap_ns for s in sidecar.stamps if s.layer_bytes == 65536}
    assert (smallest["graph"], smallest["graph+pdl"]) == (704, 448)
    assert "is 704 ns in a graph and 448 ns with PDL" in " ".join(README.split())


def test_a_second_streams_cost_is_what_was_calibrated_and_timed() -> None:
    several = find_calibration("NVIDIA H200").boundary_cost_several_streams_ns
    graph, pdl = (round(several[mode].median) for mode in ("graph", "graph+pdl"))
    assert f"it is {graph:,} in a graph and {pdl} with PDL" in README
    page = (ROOT / "docs" / "streams.md").read_text()
    timed = json.loads((ROOT / "benchmarks" / "results" / "streams_h200_2026-11-30.json").read_text())
    chain = [run["rows"] for run in timed["count"]["runs"] if run["work"] == "chain"]
    assert len(chain) == 9
    for further in (0, 1, 2, 5):
        cells = [spread([rows[further][mode] for rows in chain]) for mode in ("graph", "graph+pdl")]
        assert f"| {further} | {cells[0]} | {cells[1]} |" in page
    for layer_bytes in sorted({run["layer_bytes"] for run in timed["size"]["runs"]}):
        runs = [run for run in timed["size"]["runs"] if run["layer_bytes"] == layer_bytes]
        cells = [
            spread([run[mode]["median"] for run in runs if run["streams"] == streams])
            for mode in ("graph", "graph+pdl")
            for streams in (1, 3)
        ]
        assert f"| {layer_bytes:,} | {' | '.join(cells)} |" in page
    for size in (16_384, 262_144, 1_048_576):
        named = [run["ns"] for run in timed["torch"]["runs"] if run["size"] == size]
        before, after = "default stream: 3000 kernels", "side stream 4: 200 kernels"
        cells = [spread([ns[name] for ns in named]) for name in ("fresh", before, after)]
        assert f"| {size:,} | {' | '.join(cells)} |" in page


def spread(values: list[float]) -> str:
    """The least and the most."""
    return f"{min(values):,.0f}-{max(values):,.0f}"
