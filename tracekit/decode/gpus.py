"""What a GPU can move: peak memory bandwidth with its source. An unknown GPU is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tracekit.decode.facts import read_facts
from tracekit.errors import UnknownNameError, UsageError

_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "gpu"})


@dataclass(frozen=True)
class GpuFigures:
    """Peak figures of one GPU, and where they were read.

    `pdl`: can launch a kernel before the one ahead of it has ended (compute capability 9.0 and up);
    None where only a bandwidth was given.
    """

    name: str
    bandwidth_bytes_per_s: int
    pdl: bool | None
    source: str
    note: str | None = None


def find_gpu(name: str) -> GpuFigures:
    """The figures of a GPU named as people write it (`h200`) or as the driver does (`NVIDIA H200`).

    Every word must fit one GPU: its name, or its memory (`NVIDIA H100 80GB HBM3` is the SXM card).
    `H100` alone is the SXM card, the handbook's 3.35 TB/s.
    Raises UnknownNameError: with the candidates when several fit, with all names when none does.
    """
    facts: dict[str, dict[str, Any]] = read_facts("gpus")["gpus"]
    fitting = [key for key, fact in facts.items() if _fits(name, key, fact)]
    named = [key for key in fitting if _is_exactly(name, key, facts[key])]
    if len(named or fitting) == 1:
        key = (named or fitting)[0]
        return _figures(key, facts[key])
    if fitting:
        raise UnknownNameError(f"GPU {name!r} could be {', '.join(fitting)}: say which")
    raise UnknownNameError(f"no GPU named {name!r}; there are {', '.join(facts)}; or give its bandwidth")


def gpu_names() -> tuple[str, ...]:
    """The GPUs in the facts."""
    return tuple(read_facts("gpus")["gpus"])


def gpu_of_bandwidth(bandwidth_bytes_per_s: int, source: str) -> GpuFigures:
    """A GPU known only by a bandwidth: what the user gave, or what a trace's TARGET_INFO_GPU says."""
    if bandwidth_bytes_per_s <= 0:
        raise UsageError(f"a bandwidth of {bandwidth_bytes_per_s} bytes/s: give a positive one")
    return GpuFigures("GPU of the given bandwidth", bandwidth_bytes_per_s, None, source)


def _figures(key: str, fact: dict[str, Any]) -> GpuFigures:
    bandwidth_bytes_per_s = fact["bw_GBps"] * 1_000_000_000
    return GpuFigures(key, bandwidth_bytes_per_s, fact["pdl"], fact["source"], fact.get("note"))


def _fits(name: str, key: str, fact: dict[str, Any]) -> bool:
    words, of_name = _words(name), _words(key)
    names_it = bool(words & of_name)  # `HBM2` alone names a kind of memory, no GPU
    return _is_exactly(name, key, fact) or (names_it and words <= of_name | _words(fact["mem"]))


def _is_exactly(name: str, key: str, fact: dict[str, Any]) -> bool:
    return any(_words(name) == _words(spelling) for spelling in (key, *fact.get("also", ())))


def _words(name: str) -> frozenset[str]:
    """`NVIDIA GeForce RTX 4090` -> rtx, 4090; `sxm4` and `sxm` are one word, and so are `80G` and `80GB`."""
    lower = re.sub(r"\b(rtx)(\d)", r"\1 \2", name.lower())
    words = (re.sub(r"^(sxm)\d$|^(\d+g)b$", r"\1\2", word) for word in re.findall(r"[a-z0-9]+", lower))
    return frozenset(words) - _VENDOR_WORDS
