"""The report page's data: everything it shows, as plain values, before any of it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analysis.attribution import find_members, match_ranges
from tracekit.analysis.boundaries import Boundaries, find_boundaries, find_causes
from tracekit.analysis.gaps import GapReport, GapRow, Selection, gaps
from tracekit.analysis.histogram import Histogram, count_gaps
from tracekit.analysis.overlay import Overlay, overlay
from tracekit.analysis.steps import find_instances, find_largest
from tracekit.report.text import cautions, headline
from tracekit.report.tracks import Tracks, lay_out_tracks
from tracekit.trace import Ints, Trace

LONGEST_GAPS = 200  # of each kind, in the table and under the keys n and p
MOST_PAIRS = 500

Budget = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Prediction:
    """The estimated step over the boundary cost g, and the measured step; all in nanoseconds."""

    gap_ns: tuple[float, ...]
    step_ns: tuple[float, ...]
    measured_ns: float


@dataclass(frozen=True)
class InKernel:
    """What a megakernel's blocks did: fetch (0), wait (1) or execute (2) on each SM, and the critical path.

    Times are nanoseconds from the first record; `critical` lists record numbers in order.
    """

    sm: Ints
    kind: Ints
    start_ns: Ints
    duration_ns: Ints
    critical: Ints


@dataclass(frozen=True)
class StepPanels:
    """What the trace alone does not say; a panel that is None is left out of the page.

    `sentences` are added to the answer: the boundary cost where it was calibrated, what tracing added.
    """

    sentences: tuple[str, ...] = ()
    budget: Budget | None = None
    prediction: Prediction | None = None
    inside: InKernel | None = None


@dataclass(frozen=True)
class PageData:
    """One trace on the page: the words and numbers of `tracekit gaps`, and what the pictures need.

    `longest` are kernel rows by the white space before them, longest first, for each kind of boundary.
    """

    file: str
    answer: tuple[str, ...]
    cautions: tuple[str, ...]
    gpu_start_ns: int
    gpu_end_ns: int
    overview: GapReport
    tracks: Tracks
    pairs: tuple[GapRow, ...]
    longest: dict[str, Ints]
    histograms: dict[str, Histogram]
    steps: Overlay | None
    panels: StepPanels


def collect_page(trace: Trace, range_name: str | None = None, panels: StepPanels | None = None) -> PageData:
    """Everything the page shows of one trace; `range_name` narrows the numbers and says what a step is.

    The timeline shows the whole trace. Raises `UnknownNameError` for a range that does not exist.
    """
    panels, selection = panels or StepPanels(), Selection(range_name)
    overview = gaps(trace, "none", selection)
    boundaries = find_boundaries(trace)
    rows = _boundary_rows(trace, boundaries, range_name)
    steps = find_instances(trace, range_name) if range_name else find_largest(trace)
    return PageData(
        file=trace.recording.file,
        answer=(*headline(overview), *panels.sentences),
        cautions=tuple(cautions(overview)),
        gpu_start_ns=trace.start_ns,
        gpu_end_ns=trace.end_ns,
        overview=overview,
        tracks=lay_out_tracks(trace, boundaries, find_causes(trace, boundaries)),
        pairs=gaps(trace, "pair", selection).rows[:MOST_PAIRS],
        longest={where: _longest(boundaries, found) for where, found in rows.items()},
        histograms={
            where: count_gaps(boundaries.gap_ns[found], overview.tick_ns)
            for where, found in rows.items()
            if len(found)
        },
        steps=overlay(trace, steps) if steps else None,
        panels=panels,
    )


def _boundary_rows(trace: Trace, boundaries: Boundaries, range_name: str | None) -> dict[str, Ints]:
    """The kernels that the answer's boundaries lead into, inside replays and between launches."""
    chosen = boundaries.exists
    if range_name is not None:
        members = find_members(trace, match_ranges(trace, range_name))
        chosen = np.zeros(len(trace.kernels), dtype=bool)
        chosen[members.kernel[members.continues]] = True
    replay = boundaries.replay
    return {"replay": np.flatnonzero(chosen & replay), "launch": np.flatnonzero(chosen & ~replay)}


def _longest(boundaries: Boundaries, rows: Ints) -> Ints:
    rows = rows[boundaries.gap_ns[rows] > 0]
    if len(rows) > LONGEST_GAPS:
        rows = rows[np.argpartition(-boundaries.gap_ns[rows], LONGEST_GAPS)[:LONGEST_GAPS]]
    return rows[np.lexsort((rows, -boundaries.gap_ns[rows]))]
