"""What tracing added, by NVTX range: known only where the same work was also timed untraced."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Perturbation:
    """A kernel's share of a pass of one range, untraced and as traced at `level` (node or graph), in ns."""

    range_name: str
    level: str
    untraced_ns: float
    traced_ns: float

    @property
    def added_ns(self) -> float:
        """What tracing added to each kernel."""
        return self.traced_ns - self.untraced_ns
