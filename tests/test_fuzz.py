"""Traces nobody recorded: what `gaps --json` says equals the reference, or is an error of one line."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build import (
    CONTEXT,
    EVENT,
    MARK,
    PUSH_POP,
    START_END,
    STREAM,
    Call,
    Copy,
    Diagnostic,
    Gpu,
    Kernel,
    Range,
    Replay,
    Wait,
    build_trace,
    node,
)
from tests.fuzzing import fuzzed
from tests.reference import Activity, Reference, Selection, open_reference, reach
from tests.reference import Call as TheCall
from tests.run import GROUPINGS, Document, Outcome, differences, run

pytestmark = pytest.mark.usefixtures("a_gigabyte_more")

# Few values, so that they collide.
times = st.integers(0, 60)
lengths = st.sampled_from([0, 0, 1, 2, 3, 5, 8, 40])
ids = st.sampled_from([None, 1, 2, 3, 4])
pids = st.sampled_from([100, 100, 200])
names = st.sampled_from(["a", "b", "a<int>", "cudaLaunchKernel", 'x"; DROP TABLE StringIds; --'])
nodes = st.sampled_from([None, None, node(1, 1), node(1, 2), node(2, 1)])
places = {
    "stream": st.sampled_from([7, 7, 8]),
    "pid": pids,
    "device": st.sampled_from([0, 0, 1]),
    "context": st.sampled_from([1, 1, 2]),
    "host": st.sampled_from([0, 0, 0, 1]),
}
SCHEMAS = [None, "2.9.1", "3.1.7", "3.4.0", "3.7.2", "3.13.2", "3.20.3", "3.23.3", "3.24.7", "3.25.0"]
DROPPED = [
    *(f"CUPTI_ACTIVITY_KIND_KERNEL.{c}" for c in ("globalPid", "contextId", "graphNodeId", "demangledName")),
    *(f"CUPTI_ACTIVITY_KIND_KERNEL.{c}" for c in ("deviceId", "streamId", "correlationId", "shortName")),
    *(f"NVTX_EVENTS.{c}" for c in ("textId", "domainId", "text", "globalTid", "eventType")),
    *(f"CUPTI_ACTIVITY_KIND_RUNTIME.{c}" for c in ("globalTid", "correlationId", "nameId")),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds", "META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
]


def spans(of: type, /, **columns: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Rows of a kind with a start and an end."""
    one = st.builds(
        lambda start, length, rest: of(start, start + length, **rest),
        times,
        lengths,
        st.fixed_dictionaries(columns),
    )
    return st.lists(one, max_size=12)


tables = st.fixed_dictionaries(
    {
        "kernels": spans(Kernel, name=names, id=ids, node=nodes, **places),
        "calls": spans(Call, id=ids, name=names, pid=pids, tid=st.sampled_from([0, 5]), host=places["host"]),
        "ranges": spans(
            Range,
            name=st.sampled_from(["x", "y"]),
            domain=st.sampled_from([None, None, "d"]),
            kind=st.sampled_from([PUSH_POP, PUSH_POP, START_END, MARK]),
            registered=st.booleans(),
            pid=pids,
            tid=st.sampled_from([0, 5]),
        ),
        "copies": spans(Copy, memset=st.booleans(), **places),
        "waits": spans(Wait, kind=st.sampled_from([EVENT, STREAM, CONTEXT]), **places),
        "opaque_replays": st.one_of(st.just([]), spans(Replay, id=ids, **places)),
        "gpus": st.lists(
            st.builds(Gpu, id=st.sampled_from([0, 0, 1, None]), name=st.sampled_from(["H200", None, 7])),
            max_size=2,
            unique_by=lambda gpu: gpu.id,
        ),
        "device_map": st.sampled_from([(), ((100, 0, 0),), ((100, 0, 0), (200, 1, 0))]),
        "mode": st.sampled_from([None, "Node", "Graph"]),
        "diagnostics": st.lists(st.builds(Diagnostic, st.integers(1, 3), st.just("events lost")), max_size=2),
        "drop": st.one_of(st.just([]), st.lists(st.sampled_from(DROPPED), max_size=2)),
        "schema": st.sampled_from(SCHEMAS),
        "lazy": st.booleans(),
    }
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "trace.sqlite"


@fuzzed
@given(trace=tables, by=st.sampled_from(GROUPINGS))
def test_every_field_equals_the_reference(path: Path, trace: Document, by: str) -> None:
    build_trace(path, **trace)
    check(run("gaps", path, "--json", "--by", by), open_reference(path), by)


def check(outcome: Outcome, reference: Reference, by: str) -> None:
    """The right document, or the right kind of error."""
    gpu = [*reference.kernels, *reference.replays, *reference.copies]
    everything: list[Activity | TheCall] = [*gpu, *reference.calls, *reference.waits]
    if outcome.code == 0 and gpu:
        assert differences(outcome.document, reference.document("trace.sqlite", by)) == []
        return
    only_memsets = not (reference.kernels or reference.replays)
    # No clock runs for a century: sums of such times would not fit 64 bits.
    century = sum(a.length for a in everything) + reach(everything) >= 2**62
    assert outcome.code == 1 and (only_memsets or century), outcome
    assert "not enough memory" not in outcome.err
    assert outcome.out == "" and outcome.err.count("\n") == 1, outcome


# Cells of every kind SQLite can hold, in columns that want whole numbers.
odd = st.sampled_from(
    [
        None,
        "text",
        "7",
        b"\xff",
        3.0,
        3.5,
        -1,
        0,
        2**31,
        2**40,
        2**62,
        2**62 + 1,
        -(2**62),
        2**63 - 1,
        -(2**63),
    ]
)


def sometimes_odd(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, odd)


odd_tables = st.fixed_dictionaries(
    {
        "kernels": st.lists(
            st.builds(
                Kernel,
                sometimes_odd(times),
                sometimes_odd(st.integers(30, 90)),
                name=st.one_of(names, odd),
                id=sometimes_odd(ids),
                node=sometimes_odd(nodes),
                stream=sometimes_odd(places["stream"]),
                device=sometimes_odd(places["device"]),
                context=sometimes_odd(places["context"]),
                pid=st.sampled_from([100, None]),
            ),
            min_size=1,
            max_size=8,
        ),
        "calls": st.lists(
            st.builds(
                Call,
                sometimes_odd(times),
                sometimes_odd(st.integers(30, 90)),
                id=sometimes_odd(ids),
                name=st.one_of(names, odd),
                pid=st.sampled_from([100, None]),
            ),
            max_size=8,
        ),
        "ranges": st.lists(
            st.builds(
                Range,
                sometimes_odd(times),
                st.one_of(st.just(None), st.integers(30, 90)),
                name=st.sampled_from(["x", "", "a:b", b"\xffx", 7, None]),
                kind=sometimes_odd(st.just(PUSH_POP)),
            ),
            max_size=4,
        ),
        "copies": st.lists(
            st.builds(
                Copy,
                sometimes_odd(times),
                sometimes_odd(st.integers(30, 90)),
                bytes=odd,
                memset=st.booleans(),
            ),
            max_size=4,
        ),
        "waits": st.lists(
            st.builds(Wait, sometimes_odd(times), sometimes_odd(times), kind=sometimes_odd(st.just(STREAM))),
            max_size=4,
        ),
    }
)


@fuzzed
@given(trace=odd_tables, by=st.sampled_from(GROUPINGS))
def test_odd_cells_equal_the_reference(path: Path, trace: Document, by: str) -> None:
    build_trace(path, **trace)
    check(run("gaps", path, "--json", "--by", by), open_reference(path), by)


@fuzzed
@given(
    trace=tables,
    by=st.sampled_from(GROUPINGS),
    where=st.sampled_from(["all", "replay", "launch"]),
    window=st.one_of(st.none(), st.tuples(times, st.integers(1, 40))),
    chosen=st.one_of(st.none(), st.sampled_from(["x", "d:x"])),
)
def test_a_selection_equals_the_reference(
    path: Path, trace: Document, by: str, where: str, window: tuple[int, int] | None, chosen: str | None
) -> None:
    build_trace(path, **trace | {"drop": [], "kernels": [*trace["kernels"], Kernel(20, 25), Kernel(30, 35)]})
    closed = (window[0], sum(window)) if window else None
    options = [f"--window={closed[0]}..{closed[1]}"] if closed else []
    options += ["--range", chosen] if chosen else []
    outcome = run("gaps", path, "--json", "--by", by, "--where", where, *options)
    selection = Selection(where=where, window=closed, ranges=(chosen,) if chosen else None)
    reference = open_reference(path, selection)
    gpu = [*reference.kernels, *reference.copies, *reference.replays]
    idle = closed is not None and not [a for a in gpu if a.start < closed[1] and a.end > closed[0]]
    if outcome.code == 3:
        assert idle
    elif outcome.code == 1:
        assert not [r for r in reference.ranges if r.name == chosen or r.name.endswith(f":{chosen}")]
    else:
        assert not idle or [k for k in reference.kernels if closed and k.start == closed[0]]
        assert differences(outcome.document, reference.document("trace.sqlite", by)) == []


# Bytes of real exports, flipped and cut

# The largest hold more of the same, and the reference takes a second for each.
SAMPLES = sorted(
    path
    for path in (Path(__file__).parents[1] / "sample_traces").glob("*.sqlite")
    if path.stat().st_size < 1_500_000
)


@st.composite
def damages(draw: st.DrawFn) -> tuple[Path, list[tuple[int, int]], int | None]:
    """A sample, bytes to set in it, and the length to cut it to."""
    sample = draw(st.sampled_from(SAMPLES))
    size = sample.stat().st_size
    # Headers of the file and of its pages matter more than what lies between.
    page = st.builds(lambda page, at: page * 4096 + at, st.integers(0, size // 4096 - 1), st.integers(0, 120))
    where = st.one_of(st.integers(0, 4095), page, st.integers(0, size - 1))
    cell = st.tuples(where, st.one_of(st.sampled_from([0, 1, 5, 13, 127, 128, 255]), st.integers(0, 255)))
    return sample, draw(st.lists(cell, min_size=1, max_size=30)), draw(st.none() | st.integers(0, size))


@fuzzed
@given(damage=damages(), by=st.sampled_from(GROUPINGS))
def test_damaged_samples_give_an_answer_or_one_line(
    path: Path, damage: tuple[Path, list[tuple[int, int]], int | None], by: str
) -> None:
    sample, cells, length = damage
    content = bytearray(sample.read_bytes())
    for at, value in cells:
        content[at] = value
    path.write_bytes(content[:length])
    outcome = run("gaps", path, "--json", "--by", by)
    if outcome.code:
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), outcome
        assert "not enough memory" not in outcome.err
        return
    answer = whole_answer(path, by)
    if answer is not None:
        assert differences(outcome.document, answer) == []


def whole_answer(path: Path, by: str) -> Document | None:
    """The reference's answer, where SQLite itself finds the file whole enough to be read."""
    try:
        return open_reference(path).document("trace.sqlite", by)
    except (sqlite3.DatabaseError, KeyError, AttributeError, TypeError, ValueError):
        return None
