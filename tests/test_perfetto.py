"""The Perfetto export: no kernel lost, nothing overlapping on a track, nanoseconds kept."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit.cli_report import export
from tracekit.errors import UsageError
from tracekit.report.figure import timeline
from tracekit.report.perfetto import sample_busy, write_perfetto
from tracekit.trace import Ints

SAMPLES = Path(__file__).parent.parent / "sample_traces"
SAMPLE_NAMES = ("pdl_chain_node", "pdl_chain_graph_level", "hf_compile")

Event = dict[str, Any]


def exported(name: str, tmp_path: Path) -> list[Event]:
    path = tmp_path / "out.json.gz"
    export(SAMPLES / f"{name}.sqlite", path)
    with gzip.open(path) as file:
        events: list[Event] = json.load(file)["traceEvents"]
    return events


def ns(value_us: float) -> int:
    return round(value_us * 1000)


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_every_kernel_is_there_with_its_nanoseconds(name: str, tmp_path: Path) -> None:
    trace = tracekit.read(SAMPLES / f"{name}.sqlite")
    kernels = [event for event in exported(name, tmp_path) if event.get("cat") == "kernel"]
    origin = trace.kernels.start_ns[0] - ns(kernels[0]["ts"])
    found = [(ns(event["ts"]) + origin, ns(event["dur"])) for event in kernels]
    duration = trace.kernels.end_ns - trace.kernels.start_ns
    assert found == list(zip(trace.kernels.start_ns.tolist(), duration.tolist(), strict=True))


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_nothing_overlaps_on_one_track(name: str, tmp_path: Path) -> None:
    tracks = defaultdict(list)
    for event in exported(name, tmp_path):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])))
    for rows in tracks.values():
        rows.sort()
        assert all(after[0] >= before[1] for before, after in pairwise(rows))


def test_overlapping_kernels_get_a_named_track(tmp_path: Path) -> None:
    events = exported("pdl_chain_node", tmp_path)
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"stream 13", "stream 13, overlapping 1"} <= names


def test_arrows_have_two_ends_and_numbers_of_their_own(tmp_path: Path) -> None:
    ends = defaultdict(list)
    for event in exported("pdl_chain_node", tmp_path):
        if event["ph"] in "sf":
            ends[event["id"]].append(event["ph"])
    assert len(ends) == 8442
    assert set(map(tuple, ends.values())) == {("s", "f")}


def test_counters_tell_gaps_and_busy_share(tmp_path: Path) -> None:
    counters = defaultdict(list)
    for event in exported("pdl_chain_node", tmp_path):
        if event["ph"] == "C":
            counters[event["name"]].append(event["args"]["value"])
    assert len(counters["gap, replay, stream 13 (ns)"]) == 8358
    assert sum(gap < 0 for gap in counters["gap, replay, stream 13 (ns)"]) == 4120
    assert len(counters["gap, launch, stream 13 (ns)"]) == 8441
    assert max(counters["busy, stream 13 (%)"]) <= 100


def test_busy_samples_average_to_the_busy_share() -> None:
    start, duration = ints(0, 50, 60), ints(10, 30, 40)
    samples = sample_busy(start, duration, 10)
    assert samples[0] == (0, 100.0)
    assert samples[-1] == (100, 0.0)
    assert sum(share for _, share in samples) == 100 * 6


def ints(*values: int) -> Ints:
    import numpy as np

    return np.array(values, dtype=np.int64)


def test_equal_traces_give_equal_bytes(tmp_path: Path) -> None:
    trace = tracekit.read(SAMPLES / "hf_compile.sqlite")
    write_perfetto(trace, tmp_path / "a.json.gz")
    write_perfetto(trace, tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_an_export_has_to_say_to_what() -> None:
    with pytest.raises(UsageError, match="--perfetto"):
        export(SAMPLES / "hf_compile.sqlite")


def test_the_figure_draws_bars_close_up_and_shares_from_afar() -> None:
    trace = tracekit.read(SAMPLES / "pdl_chain_node.sqlite")
    whole, part = timeline(trace), timeline(trace, 242_900_000, 243_000_000)
    lanes = {label for bar in part.data for label in bar.y if label.startswith("stream 13")}
    assert len(lanes) == 2
    assert any("busy" in bar.hovertemplate for bar in whole.data)
    assert not any("busy" in bar.hovertemplate for bar in part.data)
