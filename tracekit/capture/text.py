"""Text, JSON and CSV of what `workloads`, `doctor`, `profile` and `calibrate` print."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence

from tracekit.capture.doctor import DoctorReport
from tracekit.capture.profile import Recording
from tracekit.capture.workloads import Workload
from tracekit.decode.calibration import Calibration, Measured
from tracekit.units import format_ns

WORKLOADS_FORMAT = "tracekit.workloads/1"
DOCTOR_FORMAT = "tracekit.doctor/1"


def workloads_text(workloads: Sequence[Workload]) -> str:
    """A line a workload: name, and what it shows or why it cannot be imported."""
    return _columns((workload.name, workload.problem or workload.shows) for workload in workloads)


def workloads_json(workloads: Sequence[Workload]) -> str:
    """`tracekit.workloads/1`."""
    rows = [dataclasses.asdict(workload) for workload in workloads]
    return json.dumps({"format": WORKLOADS_FORMAT, "rows": rows}, indent=1)


def workloads_csv(workloads: Sequence[Workload]) -> str:
    """Columns name, module, shows, problem."""
    rows = ((w.name, w.module, w.shows, w.problem or "") for w in workloads)
    return _csv(("name", "module", "shows", "problem"), rows)


def doctor_text(report: DoctorReport) -> str:
    """A line a finding; what is missing says what to install; the last line says whether recording works."""
    rows = [(finding.name, finding.found or f"missing: {finding.advice}") for finding in report.findings]
    verdict = "workloads can be recorded here" if report.can_record else "workloads cannot be recorded here"
    return f"{_columns(rows)}\n{verdict}"


def doctor_json(report: DoctorReport) -> str:
    """`tracekit.doctor/1`."""
    return json.dumps({"format": DOCTOR_FORMAT, **dataclasses.asdict(report)}, indent=1)


def doctor_csv(report: DoctorReport) -> str:
    """Columns name, found, advice; found is empty where it is missing."""
    return _csv(("name", "found", "advice"), ((f.name, f.found or "", f.advice) for f in report.findings))


def recording_text(recording: Recording) -> str:
    """What was written, a line a file."""
    rows = [("trace", str(recording.trace)), ("sidecar", str(recording.sidecar_file))]
    if recording.graph_trace is not None:
        rows.insert(1, ("graph level", str(recording.graph_trace)))
    return _columns(rows)


def calibration_text(calibration: Calibration) -> str:
    """The figures with their spread, a line each; the curve is in the file."""
    driver, cuda = calibration.driver or "unknown", calibration.cuda or "unknown"
    rows = [("GPU", f"{calibration.gpu}, driver {driver}, CUDA {cuda}")]
    rows.append(("read", _bandwidth(calibration.read_bytes_per_s)))
    rows.append(("copy", _bandwidth(calibration.copy_bytes_per_s)))
    rows += [(f"boundary cost, {mode}", _time(cost)) for mode, cost in calibration.boundary_cost_ns.items()]
    of_several = calibration.boundary_cost_several_streams_ns
    rows += [(f"boundary cost, several streams, {mode}", _time(cost)) for mode, cost in of_several.items()]
    rows += [(f"white space, {mode}", _time(space)) for mode, space in calibration.white_space_ns.items()]
    rows += [
        (f"tracing at {row.level} level, {row.mode}", f"{_time(row.added_ns)} a kernel")
        for row in calibration.perturbation
    ]
    return _columns(rows)


def _bandwidth(value: Measured) -> str:
    return f"{value.median / 1e9:,.0f} GB/s ({value.low / 1e9:,.0f} to {value.high / 1e9:,.0f})"


def _time(value: Measured) -> str:
    return f"{format_ns(value.median)} ({format_ns(value.low)} to {format_ns(value.high)})"


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs)


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")
