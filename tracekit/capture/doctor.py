"""What this machine has for recording, and what to install for what it lacks. Works without a GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture.nsys import find_nsys, nsys_version
from tracekit.errors import CaptureError

FIRST_PDL_MAJOR = 9  # compute capability 9.0, Hopper


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as nvidia-smi names it; clocks in MHz as of now."""

    name: str
    driver: str
    compute_capability: str
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None

    @property
    def has_pdl(self) -> bool:
        return int(self.compute_capability.partition(".")[0] or 0) >= FIRST_PDL_MAJOR


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was found, or None and what to do about it."""

    name: str
    found: str | None
    advice: str = ""


@dataclass(frozen=True)
class DoctorReport:
    """All findings, in order. `can_record` says whether a workload can run here and be traced."""

    findings: tuple[Finding, ...]
    can_record: bool

    def missing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.found is None)


def examine(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> DoctorReport:
    """Look for GPU, driver, CUDA, PDL, nsys, CUPTI, CuPy, cuda-bindings, nvtx and Triton. Never raises."""
    environment = os.environ if environment is None else environment
    gpus = visible_gpus(environment)
    nsys = _nsys_finding(environment, root)
    packages = [_package_finding(*row) for row in PACKAGES]
    findings = (*_gpu_findings(gpus), nsys, *packages)
    found = {finding.name for finding in findings if finding.found is not None}
    runs = {"GPU", "CuPy", "cuda-bindings", "nvtx"} <= found
    return DoctorReport(findings, runs and bool({"nsys", "CUPTI"} & found))


PACKAGES = (
    (
        "CUPTI",
        "cupti-python",
        "cupti",
        "pip install cupti-python pyelftools (only needed where there is no nsys)",
    ),
    ("CuPy", "cupy-cuda13x", "cupy", "pip install cupy-cuda13x (cupy-cuda12x for a CUDA 12 driver)"),
    ("cuda-bindings", "cuda-bindings", "cuda.bindings", "pip install cuda-bindings"),
    ("nvtx", "nvtx", "nvtx", "pip install nvtx"),
    ("Triton", "triton", "triton", "pip install torch triton (only needed for triton_pdl_chain)"),
)


def _package_finding(name: str, distribution: str, module: str, advice: str) -> Finding:
    try:
        if importlib.util.find_spec(module) is None:
            return Finding(name, None, advice)
    except (ImportError, ValueError):
        return Finding(name, None, advice)
    try:
        return Finding(name, importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "version unknown")


def _gpu_findings(gpus: tuple[GpuInfo, ...]) -> tuple[Finding, ...]:
    cuda = cuda_version()
    if not gpus:
        return (
            Finding("GPU", None, "no NVIDIA GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"),
            Finding("driver", None, "install NVIDIA's driver"),
            Finding("CUDA", cuda, "comes with the driver"),
            Finding("PDL", None, "needs a GPU of compute capability 9.0 (Hopper) or later"),
        )
    first = gpus[0]
    names = ", ".join(gpu.name for gpu in gpus)
    pdl = "yes" if first.has_pdl else None
    return (
        Finding("GPU", f"{names} (compute capability {first.compute_capability})"),
        Finding("driver", first.driver),
        Finding("CUDA", cuda, "comes with the driver"),
        Finding("PDL", pdl, f"needs compute capability 9.0, this GPU has {first.compute_capability}"),
    )


def _nsys_finding(environment: Mapping[str, str], root: Path) -> Finding:
    try:
        nsys = find_nsys(environment, root)
    except CaptureError as error:
        return Finding("nsys", None, str(error))
    return Finding("nsys", f"{nsys_version(nsys) or 'version unknown'}, {nsys.path} (found: {nsys.found})")


def visible_gpus(environment: Mapping[str, str] | None = None) -> tuple[GpuInfo, ...]:
    """The GPUs that nvidia-smi lists; none where it is missing or fails."""
    environment = os.environ if environment is None else environment
    program = shutil.which("nvidia-smi", path=environment.get("PATH", ""))
    if program is None:
        return ()
    query = "--query-gpu=name,driver_version,compute_cap,clocks.sm,clocks.mem"
    try:
        answer = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return tuple(_gpu_info(row) for row in rows if len(row) == 5) if answer.returncode == 0 else ()


def _gpu_info(row: list[str]) -> GpuInfo:
    name, driver, capability, sm_clock, memory_clock = row
    return GpuInfo(name, driver, capability, _number(sm_clock), _number(memory_clock))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cuda_version() -> str | None:
    """The CUDA version that the driver supports, `13.0`; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except OSError:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def package_versions() -> dict[str, str]:
    """The versions of the packages a recording depends on, those that are installed."""
    versions = {name: _package_finding(name, *row) for name, *row in PACKAGES}
    found = {name: finding.found for name, finding in versions.items() if finding.found is not None}
    return {**found, "python": platform.python_version()}
