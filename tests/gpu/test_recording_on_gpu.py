"""Recording on a real GPU: nsys and CUPTI must show the same gaps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tracekit.capture.nsys import find_nsys
from tracekit.capture.profile import Options, Recording, record
from tracekit.capture.sidecar import read_sidecar
from tracekit.errors import CaptureError

pytestmark = pytest.mark.gpu
TICK_NS = 32
WORDS = ["pdl_chain", "--layers", "50"]


def recorded(folder: Path, backend: str) -> Recording:
    options = Options(output=folder / f"{backend}.sqlite", backend=backend, untraced=backend == "nsys")
    return record(WORDS, options, print)


@pytest.fixture(scope="module")
def by_nsys(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    try:
        find_nsys()
    except CaptureError as error:
        pytest.skip(str(error))
    return recorded(tmp_path_factory.mktemp("nsys"), "nsys")


@pytest.fixture(scope="module")
def by_cupti(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    pytest.importorskip("cupti")
    return recorded(tmp_path_factory.mktemp("cupti"), "cupti")


def rows(trace: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(trace)) as connection:
        return connection.execute(statement).fetchall()


def median_gaps_ns(trace: Path) -> list[float]:
    """The median gap inside the replays of each executable graph, in the order they first ran."""
    kernels = rows(
        trace,
        "SELECT graphNodeId >> 32, correlationId, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL"
        " WHERE graphNodeId IS NOT NULL ORDER BY start",
    )
    gaps: dict[int, list[int]] = {}
    last_end: dict[int, int] = {}
    for graph, replay, start_ns, end_ns in kernels:
        if replay in last_end:
            gaps.setdefault(graph, []).append(start_ns - last_end[replay])
        last_end[replay] = max(end_ns, last_end.get(replay, end_ns))
    return [median(values) for values in gaps.values()]


def range_names(trace: Path) -> set[str]:
    found = rows(
        trace,
        "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE eventType = 59",
    )
    return {name for (name,) in found}


MODES = {"stream", "stream+pdl", "graph", "graph+pdl"}
RANGES = {"setup"} | MODES | {f"{mode}:warmup" for mode in MODES}


def test_nsys_records_kernels_of_replays_and_ranges(by_nsys: Recording) -> None:
    assert range_names(by_nsys.trace) == RANGES
    # two graphs x (a warm-up + 20 replays) x 50 layers
    (count,) = rows(by_nsys.trace, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId > 0")
    assert count == (2 * 21 * 50,)


def test_the_graph_level_shows_replays_only(by_nsys: Recording) -> None:
    assert by_nsys.graph_trace is not None
    (count,) = rows(by_nsys.graph_trace, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    assert count == (2 * 21,)


def test_the_sidecar_says_what_tracing_added(by_nsys: Recording) -> None:
    sidecar = read_sidecar(by_nsys.sidecar_file)

    node = sidecar.added_per_kernel_ns("graph", "node")
    graph = sidecar.added_per_kernel_ns("graph", "graph")
    assert node is not None and graph is not None
    assert node > graph
    assert sidecar.machine.gpu and sidecar.machine.driver and sidecar.machine.sm_clock_mhz


def test_cupti_records_the_same_kernels_and_ranges(by_cupti: Recording) -> None:
    assert range_names(by_cupti.trace) == RANGES
    (count,) = rows(by_cupti.trace, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId > 0")
    assert count == (2 * 21 * 50,)
    assert by_cupti.graph_trace is not None
    (replays,) = rows(by_cupti.graph_trace, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    assert replays == (2 * 21,)


def test_every_kernel_has_its_launch(by_cupti: Recording) -> None:
    (missing,) = rows(
        by_cupti.trace,
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE NOT EXISTS (SELECT 1 FROM"
        " (SELECT DISTINCT correlationId AS c FROM CUPTI_ACTIVITY_KIND_RUNTIME) WHERE c = k.correlationId)",
    )
    assert missing == (0,)


def test_nsys_and_cupti_show_the_same_gaps(by_nsys: Recording, by_cupti: Recording) -> None:
    ours, theirs = median_gaps_ns(by_cupti.trace), median_gaps_ns(by_nsys.trace)

    print("median gaps, ns: nsys", theirs, "cupti", ours)
    assert len(ours) == len(theirs) == 2
    assert ours == pytest.approx(theirs, abs=TICK_NS)
