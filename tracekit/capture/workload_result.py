"""Reads the JSON file that a workload leaves behind (`tracekit.workload-result/1`)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.capture.sidecar import Stamps, Timing
from tracekit.errors import CaptureError

FORMAT = "tracekit.workload-result/1"


@dataclass(frozen=True)
class WorkloadResult:
    """One run: its phases' repeats, its stamps, its GPU, and the figures only this workload knows."""

    timings: tuple[Timing, ...]
    repeats_ns: Mapping[str, tuple[int, ...]]
    stamps: tuple[Stamps, ...]
    gpu: Mapping[str, Any]
    facts: Mapping[str, Any]


def read_workload_result(path: Path, level: str) -> WorkloadResult:
    """The result of a run at `level`. Raises CaptureError where the workload wrote none, or a broken one."""
    try:
        document = json.loads(path.read_text())
        if document["format"] != FORMAT:
            raise CaptureError(f"{path.name}: the workload wrote {document['format']!r}, not {FORMAT}")
        return WorkloadResult(
            timings=tuple(_timing(row, level) for row in document["timings"]),
            repeats_ns={row["mode"]: tuple(row["pass_ns"]) for row in document["timings"]},
            stamps=tuple(Stamps(**row) for row in document["stamps"]),
            gpu=document["gpu"],
            facts=document["facts"],
        )
    except FileNotFoundError:
        raise CaptureError("the workload wrote no result file: it must take --result FILE") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CaptureError(f"the workload's result file is broken ({error})") from None


def _timing(row: Mapping[str, Any], level: str) -> Timing:
    repeats = row["pass_ns"]
    return Timing(
        mode=row["mode"],
        level=level,
        clock="cuda-events",
        kernels=row["kernels"],
        repeats=len(repeats),
        pass_ns=round(statistics.median(repeats)),
        min_ns=min(repeats),
        max_ns=max(repeats),
    )
