"""The file beside a trace, `x.tracekit.json`: how it was recorded, and what the same work takes untraced."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.errors import CaptureError, TraceError

FORMAT = "tracekit.sidecar/1"
ENDING = ".tracekit.json"
LEVELS = ("untraced", "graph", "node")
CLOCKS = ("cuda-events", "wall")


@dataclass(frozen=True)
class Command:
    """What was run at which level, as a user would type it: no folders, no temporary files."""

    level: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """Where it was recorded. `sm_clock_mhz` holds the clocks that were seen, in order; None: not known."""

    gpu: str | None
    compute_capability: str | None
    driver: str | None
    cuda: str | None
    sm_clock_mhz: tuple[float, ...] = ()


@dataclass(frozen=True)
class Timing:
    """One phase at one level: `pass_ns` is the median of the repeats, of one pass of `kernels` kernels.

    `mode` is the phase's NVTX range in the domain `tracekit`. For a user's own program it is empty, `clock`
    is `wall`, `kernels` is None, and the time holds start-up too.
    """

    mode: str
    level: str
    clock: str
    kernels: int | None
    repeats: int
    pass_ns: int
    min_ns: int
    max_ns: int

    @property
    def kernel_ns(self) -> float | None:
        """A kernel's share of the pass; None for a user's own program."""
        return self.pass_ns / self.kernels if self.kernels else None


@dataclass(frozen=True)
class Stamps:
    """In-kernel times of one phase, untraced: medians in ns; negative: the next kernel started before it."""

    mode: str
    layer_bytes: int
    device_gap_ns: float
    device_gap_p10_ns: float
    device_gap_p90_ns: float
    release_ns: float
    tick_ns: int


@dataclass(frozen=True)
class Sidecar:
    """All of it. `backend` is what recorded the trace, `level` the graph level of the trace beside it.

    `tasks` are `tracekit.tasks/1` documents, one a launch that recorded its own tasks during that trace;
    `analysis.tasks.read_tasks` reads them. A file without the field has none.
    """

    workload: str | None
    backend: str
    level: str
    recorded: str
    commands: tuple[Command, ...]
    versions: Mapping[str, str]
    machine: Machine
    timings: tuple[Timing, ...] = ()
    stamps: tuple[Stamps, ...] = ()
    tasks: tuple[Mapping[str, Any], ...] = ()

    def timing(self, mode: str, level: str) -> Timing | None:
        """The phase's timing at that level, or None where it was not run."""
        return next((t for t in self.timings if t.mode == mode and t.level == level), None)

    def added_per_kernel_ns(self, mode: str, level: str) -> float | None:
        """What tracing at that level added to each kernel of the phase; None where one is missing."""
        untraced, traced = (self.timing(mode, one) for one in ("untraced", level))
        if not untraced or not traced or untraced.kernel_ns is None or traced.kernel_ns is None:
            return None
        return traced.kernel_ns - untraced.kernel_ns


def sidecar_path(trace: Path) -> Path:
    """`x.tracekit.json` for `x.sqlite`."""
    return trace.with_name(trace.stem + ENDING)


def find_sidecar(trace: Path) -> Sidecar | None:
    """The sidecar beside a trace, or None where there is none; raises what `read_sidecar` raises."""
    path = sidecar_path(trace)
    return read_sidecar(path) if path.is_file() else None


def write_sidecar(sidecar: Sidecar, path: Path) -> None:
    """Write it as JSON. Raises CaptureError where the disk does not take it."""
    document = {"format": FORMAT, **dataclasses.asdict(sidecar)}
    try:
        path.write_text(json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise CaptureError(f"{path}: cannot be written ({error.strerror})") from None


def read_sidecar(path: Path) -> Sidecar:
    """Read a sidecar strictly: every field there, of its type, and no other; only `tasks` may be missing.

    Raises TraceError, which names the file and the field, for anything else.
    """
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TraceError(f"{path}: is no JSON ({error}); delete it or record again") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        raise TraceError(f"{path}: is no {FORMAT} file (format {found!r}); delete it or record again")
    try:
        return _sidecar({key: value for key, value in document.items() if key != "format"})
    except _BrokenError as error:
        raise TraceError(f"{path}: broken sidecar, {error}; delete it or record again") from None


class _BrokenError(Exception):
    pass


def _sidecar(fields: dict[str, Any]) -> Sidecar:
    fields = {"tasks": [], **fields}
    _require_fields(Sidecar, fields, "")
    for name in ("backend", "level", "recorded"):
        _require(isinstance(fields[name], str), name)
    _require(fields["workload"] is None or isinstance(fields["workload"], str), "workload")
    _require(fields["level"] in LEVELS, "level")
    versions = fields["versions"]
    _require(isinstance(versions, dict) and _all(versions.values(), str), "versions")
    return Sidecar(
        workload=fields["workload"],
        backend=fields["backend"],
        level=fields["level"],
        recorded=fields["recorded"],
        commands=tuple(_command(row) for row in _rows(fields, "commands")),
        versions=versions,
        machine=_machine(fields["machine"]),
        timings=tuple(_timing(row) for row in _rows(fields, "timings")),
        stamps=tuple(_stamps(row) for row in _rows(fields, "stamps")),
        tasks=tuple(_task_document(row) for row in _rows(fields, "tasks")),
    )


def _command(row: Any) -> Command:
    _require_fields(Command, row, "commands")
    _require(row["level"] in LEVELS, "commands.level")
    _require(isinstance(row["argv"], list) and _all(row["argv"], str), "commands.argv")
    return Command(row["level"], tuple(row["argv"]))


def _machine(row: Any) -> Machine:
    _require_fields(Machine, row, "machine")
    for name in ("gpu", "compute_capability", "driver", "cuda"):
        _require(row[name] is None or isinstance(row[name], str), f"machine.{name}")
    clocks = row["sm_clock_mhz"]
    _require(isinstance(clocks, list) and all(_is_number(clock) for clock in clocks), "machine.sm_clock_mhz")
    return Machine(**{**row, "sm_clock_mhz": tuple(clocks)})


def _timing(row: Any) -> Timing:
    _require_fields(Timing, row, "timings")
    _require(isinstance(row["mode"], str), "timings.mode")
    _require(row["level"] in LEVELS, "timings.level")
    _require(row["clock"] in CLOCKS, "timings.clock")
    _require(row["kernels"] is None or _is_count(row["kernels"]), "timings.kernels")
    for name in ("repeats", "pass_ns", "min_ns", "max_ns"):
        _require(_is_count(row[name]), f"timings.{name}")
    return Timing(**row)


def _stamps(row: Any) -> Stamps:
    _require_fields(Stamps, row, "stamps")
    _require(isinstance(row["mode"], str), "stamps.mode")
    for name in ("layer_bytes", "tick_ns"):
        _require(_is_count(row[name]), f"stamps.{name}")
    for name in ("device_gap_ns", "device_gap_p10_ns", "device_gap_p90_ns", "release_ns"):
        _require(_is_number(row[name]), f"stamps.{name}")
    return Stamps(**row)


def _task_document(row: Any) -> dict[str, Any]:
    # what is in it, `read_tasks` checks: only `gaps --by task` needs that
    _require(isinstance(row, dict) and isinstance(row.get("format"), str), "tasks")
    return dict(row)


def _rows(fields: dict[str, Any], name: str) -> list[Any]:
    rows = fields[name]
    _require(isinstance(rows, list), name)
    return list(rows)


def _require_fields(kind: type[Any], row: Any, where: str) -> None:
    _require(isinstance(row, dict), where or "the document")
    wanted = {field.name for field in dataclasses.fields(kind)}
    odd = sorted(wanted ^ set(row))
    if odd:
        problem = "unknown" if odd[0] in row else "missing"
        raise _BrokenError(f"{where + '.' if where else ''}{odd[0]} is {problem}")


def _require(holds: bool, field: str) -> None:
    if not holds:
        raise _BrokenError(f"{field} has a value that it cannot have")


def _all(values: Any, kind: type[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e18  # false for NaN too
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62
