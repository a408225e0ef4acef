"""How often each gap occurs: signed, in bins one tick of the recording's clock wide where that fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.trace import Ints


@dataclass(frozen=True)
class Histogram:
    """Bin `i` counts the gaps that are nearest to `first_ns + i * bin_ns`.

    `below` and `above` lie outside the bins: with them the counts add up to all gaps.
    """

    bin_ns: int
    first_ns: int
    counts: tuple[int, ...]
    below: int
    above: int


def count_gaps(gap_ns: Ints, tick_ns: int | None, most_bins: int = 400) -> Histogram:
    """Count gaps by size; the bins cover what is not far out.

    Far out is the outermost half percent on each side, and what lies further from the middle four
    fifths than three times their width. The bin is the tick (1 ns without one), or the smallest
    multiple of it that needs at most `most_bins` bins. There has to be at least one gap.
    """
    least, p10, p90, most = (int(v) for v in np.percentile(gap_ns, [0.5, 10, 90, 99.5], method="nearest"))
    reach = 3 * (p90 - p10) + 8 * (tick_ns or 1)
    near = gap_ns[(gap_ns >= max(least, p10 - reach)) & (gap_ns <= min(most, p90 + reach))]
    low, high = int(near.min()), int(near.max())
    tick = tick_ns or 1
    bin_ns = tick * max(1, -(-(high - low) // (tick * (most_bins - 1))))
    at = (gap_ns + bin_ns // 2) // bin_ns
    first, last = (low + bin_ns // 2) // bin_ns, (high + bin_ns // 2) // bin_ns
    inside = at[(at >= first) & (at <= last)]
    counts = np.bincount(inside - first, minlength=last - first + 1)
    below, above = int((at < first).sum()), int((at > last).sum())
    return Histogram(bin_ns, first * bin_ns, tuple(counts.tolist()), below, above)
