"""Times a phase with CUDA events, inside an NVTX range that names it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from workloads.errors import WorkloadError
from workloads.gpu import import_cupy

DOMAIN = "tracekit"
MODES = ("stream", "stream+pdl", "graph", "graph+pdl")


@dataclass(frozen=True)
class Timing:
    """One phase: `pass_ns` holds a value a repeat, the mean time of one pass (a forward) in that repeat."""

    mode: str
    kernels: int
    passes: int
    pass_ns: tuple[int, ...]


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """An NVTX range in the domain `tracekit`."""
    try:
        import nvtx
    except ImportError:
        raise WorkloadError("nvtx is not installed: pip install nvtx") from None
    with nvtx.annotate(name, domain=DOMAIN):
        yield


@dataclass(frozen=True)
class Plan:
    """How often a phase runs: `repeats` timings of `passes` passes each, of `kernels` kernels."""

    kernels: int
    passes: int
    repeats: int


def time_phase(mode: str, one_pass: Callable[[], None], stream: Any, plan: Plan) -> Timing:
    """Run a pass to warm up (range `MODE:warmup`), then time the repeats (range `MODE`, once each)."""
    with phase(f"{mode}:warmup"):
        one_pass()
        stream.synchronize()
    repeats = tuple(_time_passes(mode, one_pass, stream, plan.passes) for _ in range(plan.repeats))
    return Timing(mode, plan.kernels, plan.passes, repeats)


def _time_passes(mode: str, one_pass: Callable[[], None], stream: Any, passes: int) -> int:
    cuda = import_cupy().cuda
    before, after = cuda.Event(), cuda.Event()
    with phase(mode):
        before.record(stream)
        for _ in range(passes):
            one_pass()
        after.record(stream)
        after.synchronize()
    elapsed_ms: float = cuda.get_elapsed_time(before, after)
    return round(1e6 * elapsed_ms / passes)
