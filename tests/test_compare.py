"""Two recordings side by side: what changed, by how much, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.build import Kernel, build_trace, node
from tracekit.analysis.compare import Change, compare
from tracekit.decode.classes import classify_kernel
from tracekit.errors import UnanswerableError
from tracekit.readers import read
from tracekit.trace import Trace

SAMPLES = Path(__file__).parents[1] / "sample_traces"


def sample(name: str) -> Trace:
    return read(SAMPLES / f"{name}.sqlite")


def write(folder: Path, kernels: list[Kernel], mode: str | None = None) -> Trace:
    """A recording of these kernels, in a file of the next number."""
    number = len(list(folder.iterdir()))
    return read(build_trace(folder / f"{number}.sqlite", kernels=kernels, mode=mode))


def launched(start: int, *rows: tuple[str, int, int]) -> list[Kernel]:
    """Kernels one after another: name, gap before, length."""
    kernels = []
    for name, gap, length in rows:
        start += gap
        kernels.append(Kernel(start, start + length, name))
        start += length
    return kernels


def replay(id_: int, start: int, *rows: tuple[str, int, int]) -> list[Kernel]:
    """The same as one replay of a graph."""
    return [replace(k, id=id_, node=node(1, i)) for i, k in enumerate(launched(start, *rows))]


def test_each_pairs_gap_and_each_classs_duration_on_both_sides(tmp_path: Path) -> None:
    """Launched, a to b has gaps of 4 and 6, then of 8 and 8; in replays of 2 and 2, then of 3.

    From b to a: 100, 100 and 83 between the replays, then 100 and 854. b and c are of one class.
    """
    first = [
        *launched(0, ("a", 0, 5), ("b", 4, 10), ("a", 100, 5), ("b", 6, 10), ("a", 100, 5), ("c", 9, 30)),
        *replay(1, 1000, ("a", 0, 5), ("b", 2, 10)),
        *replay(2, 1100, ("a", 0, 5), ("b", 2, 10)),
    ]
    second = [
        *launched(0, ("a", 0, 5), ("b", 8, 10), ("a", 100, 5), ("b", 8, 10)),
        *replay(1, 1000, ("a", 0, 5), ("b", 3, 20)),
    ]
    one, two = write(tmp_path, first, "Node"), write(tmp_path, second, "Node")
    comparison = compare(one, two, lambda name: "BC" if name in "bc" else name.upper())
    assert comparison.notes == ()
    assert comparison.pairs == (
        Change(("b", "a"), "launch", 3, 2, 100.0, 477.0),
        Change(("a", "b"), "launch", 2, 2, 5.0, 8.0),
        Change(("a", "b"), "replay", 2, 1, 2.0, 3.0),
        Change(("a", "c"), "launch", 1, 0, 9.0, None),
        Change(("c", "a"), "launch", 1, 0, 716.0, None),
    )
    assert [(c.difference_ns, c.weight_ns) for c in comparison.pairs[2:4]] == [(1.0, 1.0), (None, 0)]
    assert comparison.classes == (
        Change(("BC",), "replay", 2, 1, 10.0, 20.0),
        Change(("A",), "launch", 5, 3, 5.0, 5.0),
        Change(("BC",), "launch", 3, 2, 10.0, 10.0),
    )


@pytest.mark.parametrize("modes", [("Node", "Graph"), ("Node", None)])
def test_the_refusal_names_both_files_and_modes(tmp_path: Path, modes: tuple[str, str | None]) -> None:
    kernels = launched(0, ("a", 0, 5), ("b", 4, 10))
    one, two = (write(tmp_path, kernels, mode) for mode in modes)
    with pytest.raises(UnanswerableError) as refusal:
        compare(one, two, str)
    other = "graph" if modes[1] else "no mode that was recorded"
    assert str(refusal.value) == (
        f"0.sqlite traced CUDA graphs by node, 1.sqlite by {other}: node-level tracing lengthens every "
        "kernel of a replay, so the difference would be the profiler's; record again, or compare "
        "anyway with --force"
    )


def test_the_refusal_of_partial_replays_says_how_many(tmp_path: Path) -> None:
    whole = [*replay(1, 0, ("a", 0, 5), ("b", 2, 5)), *replay(2, 100, ("a", 0, 5), ("b", 2, 5))]
    one, two = write(tmp_path, whole), write(tmp_path, whole[:3])
    with pytest.raises(UnanswerableError) as refusal:
        compare(one, two, str)
    said = (
        "1.sqlite: 1 graph replays have fewer kernels than others of their graph: "
        "gaps where kernels are missing are no gaps"
    )
    assert str(refusal.value) == f"{said}; record again, or compare anyway with --force"
    assert compare(one, two, str, force=True).notes == (said,)


def test_a_trace_against_itself_differs_by_nothing() -> None:
    trace = sample("hf_compile")
    comparison = compare(trace, trace, classify_kernel)
    assert comparison.notes == ("Both files hold the same recording.",)
    assert {change.difference_ns for change in (*comparison.pairs, *comparison.classes)} == {0}


def test_node_level_against_graph_level_is_refused() -> None:
    traces = sample("pdl_chain_node"), sample("pdl_chain_graph_level")
    with pytest.raises(UnanswerableError, match="--force"):
        compare(*traces, classify_kernel)
    comparison = compare(*traces, classify_kernel, force=True)
    assert "profiler's" in comparison.notes[0]
    launched = next(change for change in comparison.classes if change.where == "launch")
    assert (launched.first_ns, launched.second_ns, launched.difference_ns) == (992, 960, -32)
