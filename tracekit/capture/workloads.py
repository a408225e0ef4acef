"""The workloads that can be recorded by name: the package's own, and entry points `tracekit.workloads`."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from dataclasses import dataclass
from types import ModuleType

from tracekit.errors import CaptureError, UnknownNameError

GROUP = "tracekit.workloads"
# also listed as entry points; named here so that they are found in a checkout that is not installed
OWN = {
    "pdl_chain": "workloads.pdl_chain",
    "boundary_sweep": "workloads.boundary_sweep",
    "triton_pdl_chain": "workloads.triton_pdl_chain",
    "megakernel": "workloads.megakernel",
}


@dataclass(frozen=True)
class Workload:
    """A program by name. `traced_arguments` keep a recording small; `problem` says why it is no use."""

    name: str
    module: str
    shows: str
    traced_arguments: tuple[str, ...] = ()
    capture_range: bool = False
    problem: str | None = None


def list_workloads() -> tuple[Workload, ...]:
    """Every registered workload by name. One that cannot be imported is listed with its problem."""
    modules = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}
    return tuple(_describe(name, module) for name, module in sorted({**modules, **OWN}.items()))


def find_workload(name: str) -> Workload:
    """The workload of that name. Raises UnknownNameError, which lists what there is, or CaptureError."""
    workloads = {workload.name: workload for workload in list_workloads()}
    if name not in workloads:
        near = difflib.get_close_matches(name, workloads, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownNameError(
            f"no workload {name!r}: {hint}there are {', '.join(workloads)};"
            " record your own program with `tracekit profile -- COMMAND`"
        )
    if workloads[name].problem:
        raise CaptureError(f"workload {name} ({workloads[name].module}): {workloads[name].problem}")
    return workloads[name]


def _describe(name: str, module_name: str) -> Workload:
    module_name = module_name.partition(":")[0]
    try:
        module: ModuleType = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - somebody else's module may fail in any way
        return Workload(name, module_name, "", problem=f"cannot be imported: {error}")
    return Workload(
        name,
        module_name,
        getattr(module, "SHOWS", "") or (module.__doc__ or "").partition("\n")[0],
        tuple(getattr(module, "TRACED_ARGUMENTS", ())),
        bool(getattr(module, "CAPTURE_RANGE", False)),
    )
