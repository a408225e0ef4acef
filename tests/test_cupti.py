"""Recording by CUPTI, with a CUPTI that delivers known records: the tables, and how programs are started."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nsys import write_program
from tracekit.capture.cupti import python_program, record
from tracekit.capture.cupti_rows import demangle, short_name
from tracekit.errors import CaptureError

ROOT = Path(__file__).parents[1]
FAKE = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests/fake_cupti'}{os.pathsep}{ROOT}"}


def rows(trace: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(trace)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def recorded(folder: Path, level: str, *program: str) -> Path:
    record((sys.executable, *program), level, folder / "x.sqlite", lambda line: None, environment=FAKE)
    return folder / "x.sqlite"


def test_kernels_calls_and_ranges_are_in_the_tables_of_an_nsys_export(tmp_path: Path) -> None:
    trace = recorded(tmp_path, "node", "-c", "pass")

    assert rows(
        trace,
        "SELECT start, end, correlationId, graphNodeId, value FROM CUPTI_ACTIVITY_KIND_KERNEL"
        " JOIN StringIds ON id = demangledName",
    ) == [(2_000, 3_000, 12, (5 << 32) + 1, "foo(int)"), (5_000, 6_000, 13, None, "foo(int)")]
    assert rows(
        trace,
        "SELECT start, eventClass, correlationId, value FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        " JOIN StringIds ON id = nameId",
    ) == [(1_500, 0, 12, "cudaGraphLaunch_v10000"), (4_000, 1, 13, "cuLaunchKernelEx")]
    assert rows(trace, "SELECT start, end, eventType, text, domainId FROM NVTX_EVENTS") == [
        (0, None, 75, "tracekit", 1),
        (1_000, 9_000, 59, "graph", 1),
    ]


def test_a_launch_is_found_by_process_and_correlation(tmp_path: Path) -> None:
    trace = recorded(tmp_path, "node", "-c", "pass")

    assert rows(
        trace,
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON k.correlationId = r.correlationId AND k.globalPid >> 24 = r.globalTid >> 24",
    ) == [(2,)]


@pytest.mark.parametrize(("level", "mode", "replays"), [("node", "Node", False), ("graph", "Graph", True)])
def test_the_graph_level_is_recorded_and_said(tmp_path: Path, level: str, mode: str, replays: bool) -> None:
    trace = recorded(tmp_path, level, "-c", "pass")

    tables = {name for (name,) in rows(trace, "SELECT name FROM sqlite_master")}
    assert ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables) is replays
    assert (mode,) in rows(trace, "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%:MODE'")


def test_the_program_sees_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(repr(sys.argv))")

    recorded(tmp_path, "node", str(script), str(tmp_path / "out"), "--level", "graph")

    assert (tmp_path / "out").read_text() == repr([str(script), str(tmp_path / "out"), "--level", "graph"])


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "import sys; sys.exit('no weights')", "1 / 0"])
def test_a_program_that_fails_keeps_what_was_recorded(tmp_path: Path, program: str) -> None:
    with pytest.raises(
        CaptureError, match=r"failed under CUPTI with exit code [13]; what was recorded is kept"
    ):
        recorded(tmp_path, "node", "-c", program)

    assert (tmp_path / "x.sqlite").exists()


def test_without_cupti_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti/__init__.py").write_text("raise ImportError('No module named cupti')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    with pytest.raises(CaptureError, match="pip install cupti-python pyelftools"):
        record(
            (sys.executable, "-c", "0"), "node", tmp_path / "x", lambda line: None, environment=environment
        )


def test_python_programs_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write_program(tmp_path / "serve", f"#!{sys.executable}\n")
    write_program(tmp_path / "binary", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert python_program(("python3", "-m", "x", "-v")) == ("python3", ["-m", "x", "-v"])
    assert python_program(("x.py", "1")) == (sys.executable, ["x.py", "1"])
    assert python_program(("serve", "model")) == (sys.executable, [str(script), "model"])
    for words in (("binary",), ("nowhere",), ("python3", "-i")):
        with pytest.raises(CaptureError, match="cupti backend"):
            python_program(words)


def test_names_are_demangled_and_shortened() -> None:
    full = demangle("_ZN2at6native4copyIfEEvi")

    assert full == "void at::native::copy<float>(int)"
    assert short_name(full) == "copy"
    assert demangle("triton_poi_fused_0") == short_name("triton_poi_fused_0") == "triton_poi_fused_0"
