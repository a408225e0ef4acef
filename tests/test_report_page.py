"""The report page's data and text, without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracekit
from tracekit.analysis.boundaries import find_boundaries, find_causes
from tracekit.analysis.histogram import count_gaps
from tracekit.analysis.overlay import overlay
from tracekit.analysis.steps import find_instances, find_largest
from tracekit.cli_report import report
from tracekit.errors import TracekitError, UsageError
from tracekit.report.perfetto import starts_of
from tracekit.report.timeline import pack, render_timeline, write_timeline
from tracekit.report.timeline_data import InKernel, Prediction, StepPanels, collect_page
from tracekit.report.tracks import assign_lanes, lay_out_tracks
from tracekit.trace import Trace

SAMPLES = Path(__file__).parent.parent / "sample_traces"
SAMPLE_NAMES = ("pdl_chain_node", "pdl_chain_graph_level", "hf_compile")


def sample(name: str) -> Trace:
    return tracekit.read(SAMPLES / f"{name}.sqlite", shapes=True)


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def meta_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="meta">([^<]*)<', page)
    assert found
    document: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return document


# Lanes and columns


def test_a_chain_of_overlaps_alternates_between_two_lanes() -> None:
    assert assign_lanes(ints(0, 8, 16, 30), ints(10, 18, 20, 40)).tolist() == [0, 1, 0, 0]


def test_three_at_once_need_three_lanes() -> None:
    assert assign_lanes(ints(0, 1, 2, 10), ints(9, 9, 9, 12)).tolist() == [0, 1, 2, 0]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30))
def test_no_lane_overlaps_itself(rows: list[tuple[int, int]]) -> None:
    ordered = sorted((start, start + length) for start, length in rows)
    start, end = ints(*(s for s, _ in ordered)), ints(*(e for _, e in ordered))
    lane = assign_lanes(start, end)
    for one in set(lane.tolist()):
        assert (start[lane == one][1:] >= end[lane == one][:-1]).all()


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_gaps_and_durations_give_back_every_start(name: str) -> None:
    trace = sample(name)
    boundaries = find_boundaries(trace)
    tracks = lay_out_tracks(trace, boundaries, find_causes(trace, boundaries))
    kernels = tracks.table("kernel")
    assert kernels is not None
    assert (starts_of(kernels) + tracks.origin_ns == trace.kernels.start_ns).all()
    calls = tracks.table("call")
    assert calls is not None
    place = kernels.extra["call"]
    assert (starts_of(calls)[place] + tracks.origin_ns == trace.calls.start_ns[trace.kernels.call]).all()


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=50), st.sampled_from(("gap", "call")))
def test_a_column_comes_back_as_it_was(values: list[int], name: str) -> None:
    column = pack(name, ints(*values))
    size = int(column.type[1])
    planes = np.frombuffer(gzip.decompress(column.packed), dtype=np.uint8).reshape(size, -1)
    back = np.ascontiguousarray(planes.T).view(f"<{column.type}").ravel().astype(np.int64)
    assert (np.cumsum(back) if column.delta else back).tolist() == values


# Histogram and overlay


def test_a_histogram_counts_every_gap_once() -> None:
    gaps = ints(-160, -160, 64, 96, 96, 97, 5_000)
    histogram = count_gaps(gaps, 32)
    assert histogram.bin_ns == 32
    assert sum(histogram.counts) + histogram.below + histogram.above == len(gaps)


@given(st.lists(st.integers(-5_000, 10**9), min_size=1, max_size=60), st.sampled_from((None, 32, 1000)))
def test_a_histogram_loses_nothing(values: list[int], tick: int | None) -> None:
    histogram = count_gaps(ints(*values), tick)
    assert sum(histogram.counts) + histogram.below + histogram.above == len(values)
    assert len(histogram.counts) <= 401
    assert histogram.first_ns % (tick or 1) == 0


def test_unasked_the_graph_that_repeats_is_the_step() -> None:
    trace = sample("pdl_chain_node")
    found = find_largest(trace)
    assert found is not None
    laid = overlay(trace, found)
    assert (laid.label, laid.alike, laid.kernels) == ("replays of graph 2", 21, 200)
    assert (laid.start_ns[:, 0] == 0).all()
    assert (np.diff(laid.median_ns) > 0).all()


def test_a_range_before_the_graph_it_holds() -> None:
    trace = sample("hf_compile")
    found = find_largest(trace)
    assert found is not None
    assert [len(rows) for rows in found.kernels] == [566] * 16
    assert found.source == find_instances(trace, "decode_step").source == "NVTX range decode_step"


# The page


def test_equal_data_give_equal_text() -> None:
    page = collect_page(sample("hf_compile"))
    assert render_timeline([page]) == render_timeline([page])


def test_panels_without_data_are_left_out() -> None:
    page = collect_page(sample("hf_compile"))
    assert meta_of(render_timeline([page]))["runs"][0]["budget"] is None
    inside = InKernel(ints(0, 0, 5), ints(0, 2, 1), ints(0, 10, 0), ints(10, 20, 30), ints(0, 1))
    panels = StepPanels(
        ("g = 1.04 us <measured>.",),
        (("data", 300.0),),
        Prediction((0.0, 500.0), (300.0, 400.0), 410.0),
        inside,
    )
    text = render_timeline([collect_page(sample("hf_compile"), panels=panels)])
    meta = meta_of(text)
    assert "<li>g = 1.04 us &lt;measured&gt;.</li>" in text
    assert meta["runs"][0]["budget"] == [["data", 300.0]]
    assert meta["inside"]["critical"] == [0, 1]
    assert [track["label"] for track in meta["inside"]["tables"][0]["tracks"]] == ["SM 0", "SM 5"]


def test_the_page_allows_no_request() -> None:
    text = render_timeline([collect_page(sample("hf_compile"))])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r"(src|href)=[\"']?https?:", text)


def test_secrets_of_the_recording_do_not_reach_the_page(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    shutil.copy(SAMPLES / "hf_compile.sqlite", path)
    path.chmod(0o644)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES ('ENVIRONMENT:SECRET_TOKEN', 'hunter2-value')")
        for table in ("TARGET_INFO_SYSTEM_ENV", "PROCESSES"):
            width = len(db.execute(f"PRAGMA table_info({table})").fetchall())
            values = ", ".join(["'hunter2-value'"] * width)
            db.execute(f"INSERT INTO {table} VALUES ({values})")
    db.close()
    report(path, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    packed = re.findall(r'<script type="text/plain" id="\w+">([^<]*)<', text)
    everything = text.encode() + b"".join(gzip.decompress(base64.b64decode(one)) for one in packed)
    assert b"hunter2" not in everything
    assert str(tmp_path).encode() not in everything


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match="cannot be written"):
        write_timeline([collect_page(sample("hf_compile"))], tmp_path / "no such folder" / "page.html")


def test_the_page_never_replaces_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    shutil.copy(SAMPLES / "hf_compile.sqlite", path)
    with pytest.raises(UsageError, match="the trace itself"):
        report(path, path)
    assert path.read_bytes() == (SAMPLES / "hf_compile.sqlite").read_bytes()


@pytest.mark.parametrize("range_name", [None, "graph+pdl"])
def test_histograms_count_the_boundaries_of_the_answer(range_name: str | None) -> None:
    page = collect_page(sample("pdl_chain_node"), range_name)
    counted = {w: sum(h.counts) + h.below + h.above for w, h in page.histograms.items()}
    assert counted == {row.where: row.boundaries for row in page.overview.rows}
    kernels = page.tracks.table("kernel")
    assert kernels is not None
    for where, rows in page.longest.items():
        row = next(row for row in page.overview.rows if row.where == where)
        assert kernels.gap_ns[rows[0]] == row.gap_ns.max
