"""Compiles a .cu file of this folder with NVRTC, which needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.errors import WorkloadError

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Compiled:
    """One file for one architecture: the PTX to read, the cubin to load."""

    ptx: str
    cubin: bytes


def compile_file(name: str, architecture: str, defines: Mapping[str, int] | None = None) -> Compiled:
    """Compile `name` for `architecture` (`sm_90`) with `-D` defines.

    A cubin and not PTX is loaded, so that the driver never has to know the compiler's PTX version.
    Raises WorkloadError with the compiler's log.
    """
    nvrtc = _nvrtc()
    source = (FOLDER / name).read_bytes()
    program = _value(nvrtc, nvrtc.nvrtcCreateProgram(source, name.encode(), 0, [], []))
    options = [f"--gpu-architecture={architecture}", f"--include-path={FOLDER}", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in (defines or {}).items()]
    result = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = _read(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        raise WorkloadError(f"NVRTC cannot compile {name} for {architecture}: {_text(log) or result.name}")
    ptx = _read(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    cubin = _read(nvrtc, program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    nvrtc.nvrtcDestroyProgram(program)
    return Compiled(_text(ptx), cubin)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise WorkloadError(
            "cuda-bindings is not installed: pip install 'tracekit-gpu[gpu]' nvidia-cuda-nvrtc"
        ) from None
    return nvrtc


def _read(nvrtc: Any, program: Any, size_of: Any, read: Any) -> bytes:
    buffer: bytes = b" " * _value(nvrtc, size_of(program))
    read(program, buffer)
    return buffer


def _value(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise WorkloadError(f"NVRTC failed: {answer[0].name}")
    return answer[1]


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace").replace("\0", "").strip()
