"""Figures of the sample traces, as they were measured, and what must add up in every trace."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.run import gaps, row, run, warned
from tracekit.analysis.boundaries import find_boundaries
from tracekit.readers import read

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NODE, GRAPH, COMPILED = (
    SAMPLES / f"{name}.sqlite" for name in ("pdl_chain_node", "pdl_chain_graph_level", "hf_compile")
)
ALL = sorted(SAMPLES.glob("*.sqlite"))


@pytest.mark.parametrize(
    ("name", "where", "boundaries", "overlapping", "median_ns", "head_ns"),
    [
        ("tracekit:graph", "replay", 3980, 0, 96, 128),
        ("tracekit:graph+pdl", "replay", 3980, 3960, -160, 3584),
        ("tracekit:stream", "launch", 3999, 0, 20_512, None),
        ("tracekit:stream+pdl", "launch", 3999, 0, 19_615, None),
    ],
)
def test_the_chain_by_range(
    name: str, where: str, boundaries: int, overlapping: int, median_ns: int, head_ns: int | None
) -> None:
    found = row(gaps(NODE, "range"), where, range=name)
    assert (found["boundaries"], found["overlapping"]) == (boundaries, overlapping)
    assert found["gap_ns"]["median"] == pytest.approx(median_ns, abs=32)  # one tick of the clock
    assert found["head_ns"] == (None if head_ns is None else pytest.approx(head_ns, abs=100))


def test_the_chain_launched_one_by_one_waits_for_the_host() -> None:
    found = row(gaps(NODE, "range"), range="tracekit:stream")
    assert found["causes_ns"]["host"] + found["causes_ns"]["call"] > 0.9 * found["white_ns"]


def test_replays_of_the_chain() -> None:
    """20 forwards: 19 edges between replays, launched, never mixed with the 199 inside each."""
    assert row(gaps(NODE, "range"), range="tracekit:graph")["boundaries"] == 19
    assert gaps(NODE)["trace"]["kernels"] == 16_800
    assert gaps(NODE)["trace"]["tick_ns"] == 32


def test_the_chain_at_graph_level_is_opaque() -> None:
    document = gaps(GRAPH)
    assert (document["trace"]["graph_trace"], document["trace"]["opaque_replays"]) == ("graph", 42)
    assert warned(document)["opaque_replays"] == 42
    assert document["trace"]["kernels"] == 8400
    assert "--cuda-graph-trace=node" in run("gaps", GRAPH).out
    assert not [r for r in document["rows"] if r["where"] == "replay"]


def test_a_compiled_decode_step() -> None:
    """16 steps of 566 kernels each: 289 us of white space a step inside replays, median 448 ns."""
    found = row(gaps(COMPILED, "range"), "replay", range="decode_step")
    assert gaps(COMPILED)["trace"]["kernels"] == 16 * 566
    assert found["gap_ns"]["median"] == pytest.approx(448, abs=32)
    assert found["white_ns"] / 16 == pytest.approx(288_648, abs=1)
    both = [r for r in gaps(COMPILED, "range")["rows"] if r["key"]["range"] == "decode_step"]
    assert sum(r["kernel_ns"]["sum"] for r in both) / 16 == pytest.approx(2_110_000, rel=0.01)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_span_is_busy_and_idle(path: Path) -> None:
    document = gaps(path)
    for time in [*document["devices"], *(g for g in document["trace"]["gpus"] if "span_ns" in g)]:
        assert time["span_ns"] == time["busy_ns"] + time["idle_ns"]
        assert 0 <= time["busy_ns"] <= time["span_ns"] <= document["trace"]["span_ns"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_span_of_a_stream_is_durations_and_white_space_less_overlap(path: Path) -> None:
    query = (
        'SELECT streamId, max("end") - min(start), sum("end" - start) '
        "FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY streamId"
    )
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as db:
        streams = {stream: (span, durations) for stream, span, durations in db.execute(query)}
    for stream, (span, durations) in streams.items():
        rows = [r for r in gaps(path, "stream")["rows"] if r["key"]["stream"] == stream]
        assert span == durations + sum(r["white_ns"] - r["overlap_ns"] for r in rows)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_causes_add_up_to_the_white_space(path: Path) -> None:
    for found in gaps(path, "pair")["rows"]:
        if found["causes_ns"] is not None:
            assert sum(found["causes_ns"].values()) == found["white_ns"]


@pytest.mark.parametrize("by", ["stream", "pair", "kernel", "graph", "none"])
def test_every_boundary_is_in_one_row(by: str) -> None:
    rows = gaps(NODE, by)["rows"]
    assert sum(r["boundaries"] for r in rows) == int(find_boundaries(read(NODE)).exists.sum()) == 16_799
