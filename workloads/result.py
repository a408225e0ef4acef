"""What a run of a workload leaves behind for the one who recorded it: a JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.errors import WorkloadError
from workloads.gpu import Gpu
from workloads.phases import Timing

FORMAT = "tracekit.workload-result/1"


@dataclass(frozen=True)
class Stamps:
    """In-kernel times of one phase, from %globaltimer: medians over the boundaries, in ns.

    `device_gap_ns` is the next kernel's first block's start minus the last block's end, `release_ns` the
    first return from a wait minus that end; negative: before it. `tick_ns` is the clock's smallest step.
    """

    mode: str
    layer_bytes: int
    device_gap_ns: float
    device_gap_p10_ns: float
    device_gap_p90_ns: float
    release_ns: float
    tick_ns: int


@dataclass(frozen=True)
class Result:
    """One run that passed its check. `facts` holds the workload's own figures (bandwidths, edges, clocks)."""

    workload: str
    options: Mapping[str, Any]
    gpu: Gpu
    timings: tuple[Timing, ...]
    stamps: tuple[Stamps, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def write_result(result: Result, path: Path | None) -> None:
    """Write the result as JSON where a path is given. Raises WorkloadError where that cannot be written."""
    if path is None:
        return
    document = {"format": FORMAT, **dataclasses.asdict(result)}
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise WorkloadError(f"cannot write the result to {path}: {error.strerror}") from None
