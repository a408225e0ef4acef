"""The sidecar: written and read back, strict about everything else, and what tracing added by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import fuzzed
from tracekit.capture.sidecar import (
    Command,
    Machine,
    Sidecar,
    Stamps,
    Timing,
    read_sidecar,
    sidecar_path,
    write_sidecar,
)
from tracekit.errors import CaptureError, TraceError, TracekitError

SIDECAR = Sidecar(
    workload="pdl_chain",
    backend="nsys",
    level="node",
    recorded="2026-11-30T02:00:00+00:00",
    commands=(Command("untraced", ("python3", "-m", "workloads.pdl_chain")),),
    versions={"nsys": "2025.3.2.0"},
    machine=Machine("NVIDIA H200", "9.0", "580.159.04", "13.0", (1980.0,)),
    timings=(
        Timing("graph", "untraced", "cuda-events", 200, 5, 208_000, 207_000, 210_000),
        Timing("graph", "node", "cuda-events", 200, 1, 250_000, 250_000, 250_000),
        Timing("", "node", "wall", None, 1, 9, 9, 9),
    ),
    stamps=(Stamps("graph", 65_536, 704.0, 672.0, 736.0, 768.0, 32),),
    tasks=({"format": "tracekit.tasks/1", "range": "graph:tasks"},),
)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    write_sidecar(SIDECAR, tmp_path / "x.tracekit.json")
    loaded: dict[str, Any] = json.loads((tmp_path / "x.tracekit.json").read_text())
    return loaded


def read(document: Any, folder: Path) -> Sidecar:
    (folder / "x.tracekit.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return read_sidecar(folder / "x.tracekit.json")


def test_what_is_written_is_read_back(document: dict[str, Any], tmp_path: Path) -> None:
    assert document["format"] == "tracekit.sidecar/1"
    assert read(document, tmp_path) == SIDECAR


def test_what_tracing_added_is_a_kernels_share() -> None:
    assert SIDECAR.added_per_kernel_ns("graph", "node") == (250_000 - 208_000) / 200
    assert SIDECAR.added_per_kernel_ns("graph", "graph") is None
    assert SIDECAR.added_per_kernel_ns("", "node") is None


def test_the_sidecar_lies_beside_its_trace() -> None:
    assert sidecar_path(Path("a/run.v2.sqlite")) == Path("a/run.v2.tracekit.json")


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("format",), "tracekit.sidecar/9", "is no tracekit.sidecar/1 file"),
        (("level",), "kernel", "level has a value"),
        (("machine", "sm_clock_mhz"), ["fast"], "machine.sm_clock_mhz has a value"),
        (("machine", "gpu"), 7, "machine.gpu has a value"),
        (("timings", 0, "pass_ns"), -1, "timings.pass_ns has a value"),
        (("timings", 0, "pass_ns"), 1.5, "timings.pass_ns has a value"),
        (("timings", 0, "pass_ns"), True, "timings.pass_ns has a value"),
        (("timings", 0, "clock"), "sundial", "timings.clock has a value"),
        (("timings",), {}, "timings has a value"),
        (("stamps", 0, "device_gap_ns"), float("nan"), "stamps.device_gap_ns has a value"),
        (("commands", 0, "argv"), "python3", "commands.argv has a value"),
        (("versions",), ["nsys"], "versions has a value"),
        (("tasks",), {}, "tasks has a value"),
        (("tasks", 0), [], "tasks has a value"),
        (("tasks", 0, "format"), None, "tasks has a value"),
        (("surprise",), 1, "surprise is unknown"),
    ],
    ids=str,
)
def test_every_broken_field_is_one_line_that_names_it(
    document: dict[str, Any], tmp_path: Path, path: tuple[Any, ...], value: Any, complaint: str
) -> None:
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value

    with pytest.raises(TraceError) as error:
        read(document, tmp_path)

    assert complaint in str(error.value)
    assert "x.tracekit.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["timings", "machine", "backend", "workload"])
def test_a_missing_field_is_named(document: dict[str, Any], tmp_path: Path, field: str) -> None:
    del document[field]

    with pytest.raises(TraceError, match=f"{field} is missing"):
        read(document, tmp_path)


def test_a_sidecar_from_before_there_were_tasks_has_none(document: dict[str, Any], tmp_path: Path) -> None:
    del document["tasks"]

    assert read(document, tmp_path).tasks == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"'])
def test_what_is_no_sidecar_is_said_to_be_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"x\.tracekit\.json: is no "):
        read(text, tmp_path)


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be written"):
        write_sidecar(SIDECAR, tmp_path / "none/x.tracekit.json")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["mode", "level", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)


@fuzzed
@pytest.mark.usefixtures("a_gigabyte_more")
@given(data=st.data())
def test_any_json_is_a_sidecar_or_one_line(
    data: st.DataObject, document: dict[str, Any], tmp_path: Path
) -> None:
    """Some value of a good one replaced by anything, or anything as a whole."""
    place: Any = {"whole": json.loads(json.dumps(document))}
    root, key = place, "whole"
    for _ in range(data.draw(st.integers(0, 3))):
        inner = place[key]
        keys = (
            list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else []
        )
        if not keys:
            break
        place, key = inner, data.draw(st.sampled_from(list(keys)))
    place[key] = data.draw(JSON)

    try:
        assert isinstance(read(json.dumps(root["whole"]), tmp_path), Sidecar)
    except TracekitError as error:
        assert "\n" not in str(error)


@fuzzed
@pytest.mark.usefixtures("a_gigabyte_more")
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_sidecar_is_one_or_one_line(
    place: float, byte: int, cut: bool, document: dict[str, Any], tmp_path: Path
) -> None:
    damaged = bytearray(json.dumps(document).encode())
    at = int(place * len(damaged))
    damaged[at : None if cut else at + 1] = bytes([byte])
    (tmp_path / "x.tracekit.json").write_bytes(damaged)

    try:
        assert isinstance(read_sidecar(tmp_path / "x.tracekit.json"), Sidecar)
    except TracekitError as error:
        assert "\n" not in str(error)
