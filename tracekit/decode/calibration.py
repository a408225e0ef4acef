"""What a GPU was measured to do: bandwidths, the cost of a kernel boundary, time against bytes.

Made by `tracekit calibrate`; those that ship lie in `calibrations/`, one file a GPU, each written by that
command.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.errors import TracekitError, UnknownNameError

FORMAT = "tracekit.calibration/1"
FOLDER = "calibrations"


@dataclass(frozen=True)
class Measured:
    """A median with the smallest and the largest of its repeats."""

    median: float
    low: float
    high: float
    repeats: int

    @property
    def spread(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class Perturbation:
    """What tracing at a graph level adds to a kernel of a mode, in ns."""

    mode: str
    level: str
    added_ns: Measured


@dataclass(frozen=True)
class CurvePoint:
    """One size of the sweep in one mode: the period of a layer that reads `layer_bytes`, in ns.

    `device_gap_ns` is the time from the last block's end to the next kernel's first block, where stamps
    were read; its low and high are the 10th and 90th percentile over the boundaries of a pass.
    """

    mode: str
    layer_bytes: int
    period_ns: Measured
    device_gap_ns: Measured | None


@dataclass(frozen=True)
class Calibration:
    """One GPU on one day. Modes: `stream`, `stream+pdl`, `graph`, `graph+pdl`; bandwidths: bytes per second.

    `boundary_cost_ns` is the period of an almost empty layer (of `empty_layer_bytes`, read and written),
    untraced: the g of `step = data + n x g`. `white_space_ns` is what a node-level trace of the same layers
    shows between them, and is not that cost. A copy's bandwidth counts bytes read and bytes written.
    `boundary_cost_several_streams_ns` is the boundary cost in a process in which further streams have
    launched kernels (docs/streams.md); empty in a calibration from before it was measured.
    """

    gpu: str
    compute_capability: str
    driver: str | None
    cuda: str | None
    date: str
    sm_clock_mhz: tuple[float, ...]
    read_bytes_per_s: Measured
    copy_bytes_per_s: Measured
    empty_layer_bytes: int
    boundary_cost_ns: Mapping[str, Measured]
    white_space_ns: Mapping[str, Measured]
    perturbation: tuple[Perturbation, ...]
    curve: tuple[CurvePoint, ...]
    commands: tuple[str, ...]
    versions: Mapping[str, str]
    boundary_cost_several_streams_ns: Mapping[str, Measured] = field(default_factory=dict)

    def curve_of(self, mode: str) -> tuple[CurvePoint, ...]:
        """The points of one mode by size; empty where the mode was not swept."""
        points = [point for point in self.curve if point.mode == mode]
        return tuple(sorted(points, key=lambda point: point.layer_bytes))


def summarize(values: Sequence[float]) -> Measured:
    """Median, smallest and largest of at least one value."""
    return Measured(float(statistics.median(values)), float(min(values)), float(max(values)), len(values))


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write it as JSON. Raises TracekitError where the disk does not take it."""
    document = {"format": FORMAT, **dataclasses.asdict(calibration)}
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written ({error.strerror})") from None


def load_calibration(path: Path) -> Calibration:
    """Read one. Raises TracekitError, which names the file and what is wrong with it."""
    try:
        text = path.read_text()
    except OSError as error:
        raise TracekitError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_calibration(text, str(path))


def parse_calibration(text: str, where: str) -> Calibration:
    """The calibration in a JSON text. Raises TracekitError, which names `where`."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise TracekitError(
                f"{where}: is {document['format']!r}, not {FORMAT}; run `tracekit calibrate` again"
            )
        return _calibration({key: value for key, value in document.items() if key != "format"})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TracekitError(f"{where}: is no calibration ({error}); run `tracekit calibrate` again") from None


def _calibration(fields: dict[str, Any]) -> Calibration:
    typed = {
        "sm_clock_mhz": tuple(float(clock) for clock in fields["sm_clock_mhz"]),
        "read_bytes_per_s": _measured(fields["read_bytes_per_s"]),
        "copy_bytes_per_s": _measured(fields["copy_bytes_per_s"]),
        "boundary_cost_ns": _by_mode(fields["boundary_cost_ns"]),
        "boundary_cost_several_streams_ns": _by_mode(fields.get("boundary_cost_several_streams_ns", {})),
        "white_space_ns": _by_mode(fields["white_space_ns"]),
        "perturbation": tuple(
            Perturbation(row["mode"], row["level"], _measured(row["added_ns"]))
            for row in fields["perturbation"]
        ),
        "curve": tuple(_point(row) for row in fields["curve"]),
        "commands": tuple(str(command) for command in fields["commands"]),
    }
    return Calibration(**{**fields, **typed})


def _by_mode(rows: dict[str, Any]) -> dict[str, Measured]:
    return {mode: _measured(row) for mode, row in rows.items()}


def _measured(row: dict[str, Any]) -> Measured:
    return Measured(float(row["median"]), float(row["low"]), float(row["high"]), int(row["repeats"]))


def _point(row: dict[str, Any]) -> CurvePoint:
    gap = row["device_gap_ns"]
    measured_gap = None if gap is None else _measured(gap)
    return CurvePoint(row["mode"], int(row["layer_bytes"]), _measured(row["period_ns"]), measured_gap)


def packaged_calibrations() -> dict[str, Calibration]:
    """The calibrations that ship, by GPU name as the driver gives it (`NVIDIA H200`)."""
    folder = importlib.resources.files("tracekit.decode") / FOLDER
    if not folder.is_dir():
        return {}
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name
    )
    found = [parse_calibration(file.read_text(), file.name) for file in files]
    return {calibration.gpu: calibration for calibration in found}


def find_calibration(gpu: str) -> Calibration:
    """The packaged calibration of that GPU. Raises UnknownNameError, which lists those there are."""
    calibrations = packaged_calibrations()
    if gpu not in calibrations:
        names = ", ".join(calibrations) or "none"
        raise UnknownNameError(
            f"no calibration of {gpu!r} ships (there are: {names}); run `tracekit calibrate` on it"
        )
    return calibrations[gpu]
