"""The timeline as a Plotly figure, for notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from tracekit.analysis.boundaries import find_boundaries, find_causes
from tracekit.report.names import shorten
from tracekit.report.perfetto import sample_busy, starts_of
from tracekit.report.tracks import Track, Tracks, TrackTable, lay_out_tracks
from tracekit.trace import Ints, Trace
from tracekit.units import format_ns

MOST_BARS = 3000  # in the whole figure; a track of more is drawn as its busy share
COLOURS = {
    "range": "#6c757d",
    "call": "#7d6b9e",
    "wait": "#9a8c98",
    "replay": "#999999",
    "opaque": "#56606b",
    "kernel": "#0072b2",
    "copy": "#7f6a4d",
}


@dataclass(frozen=True)
class _View:
    """The part of the recording to draw, in nanoseconds after the first GPU activity, and the bars left."""

    low_ns: int
    high_ns: int
    offset_ns: int
    bars: int


def timeline(trace: Trace, start_ns: int | None = None, end_ns: int | None = None) -> Any:
    """A Plotly figure of the trace, or of the part from `start_ns` to `end_ns` after its first GPU activity.

    A track whose bars would be too many is drawn as its busy share in percent: narrow the part to see
    bars. Overlapping kernels of one stream get a row each. Needs plotly.
    """
    import plotly.graph_objects as go

    boundaries = find_boundaries(trace)
    tracks = lay_out_tracks(trace, boundaries, find_causes(trace, boundaries))
    rows = [(table, track) for table in tracks.tables for track in table.tracks]
    view = _View(
        low_ns=0 if start_ns is None else start_ns,
        high_ns=trace.span_ns if end_ns is None else end_ns,
        offset_ns=trace.start_ns - tracks.origin_ns,
        bars=MOST_BARS // max(1, len(rows)),
    )
    figure = go.Figure()
    for table, track in rows:
        for lane in range(track.lanes):
            _add_lane(figure, tracks, table, track, lane, view)
    figure.update_layout(
        barmode="overlay",
        height=120 + 34 * sum(track.lanes for _, track in rows),
        xaxis={"title": "us after the first GPU activity", "range": [view.low_ns / 1e3, view.high_ns / 1e3]},
        yaxis={"autorange": "reversed", "automargin": True},
        showlegend=False,
        title=escape(trace.recording.file),
    )
    return figure


def _add_lane(figure: Any, tracks: Tracks, table: TrackTable, track: Track, lane: int, view: _View) -> None:
    rows = slice(track.low, track.high)
    chosen = table.lane[rows] == lane
    start = starts_of(table)[rows][chosen] - view.offset_ns
    duration, name = table.duration_ns[rows][chosen], table.name[rows][chosen]
    inside = (start < view.high_ns) & (start + duration > view.low_ns)
    label = escape(f"{track.label.text}{f' ({lane + 1})' if lane else ''}, {track.label.group}")
    if int(inside.sum()) > view.bars:
        _add_shares(figure, label, start[inside], duration[inside], COLOURS[table.kind])
        return
    words = [escape(shorten(tracks.names[code], 120)) for code in name[inside].tolist()]
    _add_bars(figure, label, start[inside], duration[inside], words, COLOURS[table.kind])


def _add_bars(
    figure: Any, label: str, start_ns: Ints, duration_ns: Ints, words: list[str], colour: str
) -> None:
    figure.add_bar(
        orientation="h",
        y=[label] * len(start_ns),
        base=(start_ns / 1e3).tolist(),
        x=(duration_ns / 1e3).tolist(),
        customdata=[[word, format_ns(ns)] for word, ns in zip(words, duration_ns.tolist(), strict=True)],
        hovertemplate="%{customdata[0]}<br>start %{base} us<br>%{customdata[1]}<extra></extra>",
        marker={"color": colour, "line": {"width": 0}},
    )


def _add_shares(figure: Any, label: str, start_ns: Ints, duration_ns: Ints, colour: str) -> None:
    samples = sample_busy(start_ns, duration_ns, 400)
    at = np.array([time for time, _ in samples])
    shares = [share for _, share in samples[:-1]]
    figure.add_bar(
        orientation="h",
        y=[label] * len(shares),
        base=(at[:-1] / 1e3).tolist(),
        x=(np.diff(at) / 1e3).tolist(),
        customdata=shares,
        hovertemplate="busy %{customdata} % of this stretch<extra></extra>",
        marker={
            "color": colour,
            "opacity": [max(0.04, share / 100) for share in shares],
            "line": {"width": 0},
        },
    )
