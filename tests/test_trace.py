"""The trace as a library user meets it: its tables as DataFrames, and how it shows itself."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import tracekit
from tests.build import Call, Copy, Kernel, Range, build_trace, node


def test_tables_are_data_frames_with_everything_spelled_out(tmp_path: Path) -> None:
    """Stream keys are four columns, names are names, what is not recorded is missing and not a number."""
    path = build_trace(
        tmp_path / "x.sqlite",
        kernels=[Kernel(100, 110, "a", id=1), Kernel(120, 135, "b", id=2, node=node(3, 4))],
        calls=[Call(50, 60, id=1)],
        copies=[Copy(10, 20, bytes=64)],
        ranges=[Range(40, 70, "step", domain="d")],
    )
    trace = tracekit.read(path)
    kernels = trace.frame("kernels")
    assert kernels[["start_ns", "end_ns", "name"]].values.tolist() == [[100, 110, "a"], [120, 135, "b"]]
    assert kernels[["process", "device", "context", "stream"]].values.tolist() == [[100, 0, 1, 7]] * 2
    assert kernels["graph_node"].isna().tolist() == [True, False]
    assert kernels["graph_node"][1] == node(3, 4)
    assert kernels["call"].tolist() == [0, -1]
    assert trace.frame("ranges")["name"].tolist() == ["d:step"]
    assert trace.frame("copies")["moved_bytes"].tolist() == [64]
    assert trace.frame("waits").empty


def test_a_trace_and_a_report_show_themselves_in_a_notebook(tmp_path: Path) -> None:
    """Names are somebody's text: escaped."""
    path = build_trace(tmp_path / "x.sqlite", kernels=[Kernel(1, 2, "<b>a</b>"), Kernel(3, 4, "<b>a</b>")])
    trace = tracekit.read(path)
    report = tracekit.gaps(trace)
    assert repr(trace) == "<Trace x.sqlite: 2 kernels, 0 copies, 0 ranges, 0 opaque replays>"
    assert "<td>kernels</td><td>2</td>" in trace._repr_html_()
    assert isinstance(report.table, pd.DataFrame)
    shown = report._repr_html_()
    assert "&lt;b&gt;a&lt;/b&gt;" in shown and "<b>a" not in shown
