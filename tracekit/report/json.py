"""The gap report as JSON: the contract `tracekit.gaps/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tracekit.analysis.gaps import GapReport, GapRow
from tracekit.analysis.idle import DeviceTime

Document = dict[str, Any]


def gaps_json(reports: Sequence[GapReport]) -> str:
    """One document for one trace, a `tracekit.gaps-set/1` for several."""
    documents = [gaps_document(report) for report in reports]
    whole = documents[0] if len(documents) == 1 else {"format": "tracekit.gaps-set/1", "traces": documents}
    return json.dumps(whole, allow_nan=False)


def gaps_document(report: GapReport) -> Document:
    """The document of one trace as plain data."""
    return {
        "format": "tracekit.gaps/1",
        "trace": _trace(report),
        "devices": [_device(device) for device in report.devices],
        "by": report.by,
        "selection": _selection(report),
        "rows": [_row(row) for row in report.rows],
        "warnings": [asdict(warning) for warning in report.warnings],
        "perturbation": [asdict(p) | {"added_ns": p.added_ns} for p in report.perturbation],
    }


def _trace(report: GapReport) -> Document:
    recording = report.recording
    times = {gpu.device: gpu for gpu in report.gpus}
    gpus = []
    for gpu in recording.gpus:
        time = times.get(gpu.device)
        known = {"busy_ns": time.busy_ns, "idle_ns": time.idle_ns, "span_ns": time.span_ns} if time else {}
        gpus.append(asdict(gpu) | known)
    return {
        "file": recording.file,
        "product": recording.product,
        "nsys_version": recording.nsys_version,
        "schema_version": recording.schema_version,
        "graph_trace": recording.graph_trace,
        "span_ns": report.span_ns,
        "kernels": report.kernels,
        "opaque_replays": report.opaque_replays,
        "tick_ns": report.tick_ns,
        "gpus": gpus,
    }


def _device(device: DeviceTime) -> Document:
    return asdict(device) | {"idle_ns": device.idle_ns}


def _selection(report: GapReport) -> Document:
    chosen = asdict(report.selection)
    return chosen | {"matched_ranges": asdict(report.matched_ranges) if report.matched_ranges else None}


def _row(row: GapRow) -> Document:
    document = asdict(row)
    document["kernel_ns"] = {
        "median": document.pop("kernel_median_ns"),
        "sum": document.pop("kernel_sum_ns"),
    }
    return document
