"""The report page: one HTML file that works offline and asks the network for nothing.

Everything out of a trace is either escaped text or lies in base64; the page's two scripts are known by
their hash, and its content-security policy runs no other and allows no request.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from tracekit.analysis.compare import Change, Comparison
from tracekit.analysis.gaps import GapRow
from tracekit.analysis.overlay import Overlay
from tracekit.errors import TracekitError
from tracekit.report.names import printable
from tracekit.report.timeline_data import LONGEST_GAPS, MOST_PAIRS, PageData, StepPanels
from tracekit.report.tracks import ORDER, Tracks, TrackTable, lay_out_sms
from tracekit.trace import Ints

SCRIPTS = ("data.js", "draw.js", "page.js")
DELTAS = {"call", "range", "replay"}  # row numbers, which mostly grow by one
COLOURED_NAMES = 8

Document = dict[str, Any]


@dataclass(frozen=True)
class _Column:
    """A column on its way into the page: name, NumPy type, whether it is summed up, gzipped bytes."""

    name: str
    type: str
    delta: bool
    packed: bytes


def write_timeline(pages: Sequence[PageData], path: Path, difference: Comparison | None = None) -> None:
    """Write the page of one trace, or of two above one another, to `path`.

    Raises TracekitError where the file cannot be written.
    """
    text = render_timeline(pages, difference)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written: {error.strerror}") from None


def render_timeline(pages: Sequence[PageData], difference: Comparison | None = None) -> str:
    """The page as text; equal data give equal text."""
    script = "\n".join(_resource("page", name).decode() for name in SCRIPTS)
    plotly = _resource("vendor", "plotly-basic.min.js.gz")
    blobs = _Blobs()
    meta = {
        "runs": [_run(page, blobs) for page in pages],
        "difference": _difference(difference) if difference else None,
        "inside": _inside(pages[0].panels, blobs),
    }
    blobs.add_named("meta", gzip.compress(json.dumps(meta).encode(), 6, mtime=0))
    blobs.add_named("plotly", plotly)
    return Template(_resource("page", "page.html").decode()).substitute(
        policy=_policy(script.encode(), gzip.decompress(plotly)),
        title=html.escape(f"tracekit: {' and '.join(printable(page.file) for page in pages)}"),
        style=_resource("page", "page.css").decode(),
        answers="\n".join(_answer(page, len(pages) > 1) for page in pages),
        cautions=_list(list(dict.fromkeys(sentence for page in pages for sentence in page.cautions))),
        whose=_whose(pages[0]) if len(pages) > 1 else "",
        longest=LONGEST_GAPS,
        data=blobs.elements(),
        script=script,
    )


def pack(name: str, values: Ints) -> _Column:
    """A column in the narrowest integers that hold it, lowest bytes first, gzipped.

    Values that 32 bits cannot hold are stored as float64, exact up to 2^53.
    """
    delta = name in DELTAS
    stored = np.diff(values, prepend=0) if delta else values
    low, high = (int(stored.min()), int(stored.max())) if len(stored) else (0, 0)
    fits = (t for t in ("i1", "i2", "i4") if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    narrow = next(fits, "f8")
    planes = stored.astype(f"<{narrow}").view(np.uint8).reshape(len(stored), -1).T
    return _Column(name, narrow, delta, gzip.compress(planes.tobytes(), 6, mtime=0))


class _Blobs:
    """The base64 elements of the page, in order."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def add(self, packed: bytes) -> str:
        return self.add_named(f"b{len(self._elements)}", packed)

    def add_named(self, name: str, packed: bytes) -> str:
        self._elements.append(
            f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>'
        )
        return name

    def elements(self) -> str:
        return "\n".join(self._elements)


def _resource(*parts: str) -> bytes:
    return files("tracekit.report").joinpath(*parts).read_bytes()


def _policy(*scripts: bytes) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts
    )
    # Plotly and the panels set styles; images are data that the page made itself.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _answer(page: PageData, several: bool) -> str:
    title = f"<h3>{html.escape(printable(page.file))}</h3>\n" if several else ""
    return title + _list(page.answer)


def _whose(page: PageData) -> str:
    return f"<p class=quiet>From here on: {html.escape(printable(page.file))}.</p>"


def _list(sentences: Sequence[str]) -> str:
    """A sentence that begins with blanks belongs to the one before it."""
    items = (
        f"<li{' class=more' if sentence.startswith(' ') else ''}>{html.escape(sentence.strip())}</li>"
        for sentence in sentences
    )
    return f"<ul>{''.join(items)}</ul>"


# One run


def _run(page: PageData, blobs: _Blobs) -> Document:
    offset = page.gpu_start_ns - page.tracks.origin_ns
    return {
        "file": printable(page.file),
        "origin": str(page.tracks.origin_ns),
        "offset": offset,
        "end": page.tracks.end_ns - page.gpu_start_ns,
        "gpu_end": page.gpu_end_ns - page.gpu_start_ns,
        **_tables(page.tracks, blobs),
        "top": _longest_names(page.tracks),
        "longest": {where: rows.tolist() for where, rows in page.longest.items()},
        "histograms": {where: asdict(histogram) for where, histogram in page.histograms.items()},
        "pairs": [_pair(row) for row in page.pairs],
        "steps": _steps(page.steps),
        **_panels(page.panels),
    }


def _tables(tracks: Tracks, blobs: _Blobs) -> Document:
    return {
        "names": tracks.names,
        "shapes": tracks.shapes,
        "layout": _layout(tracks),
        "tables": [_table(table, blobs) for table in tracks.tables],
    }


def _table(table: TrackTable, blobs: _Blobs) -> Document:
    own = {"gap": table.gap_ns, "duration": table.duration_ns, "name": table.name, "lane": table.lane}
    columns = {name: np.asarray(values, dtype=np.int64) for name, values in (own | table.extra).items()}
    with ThreadPoolExecutor(2) as pool:  # zlib works outside the interpreter's lock
        packed = list(pool.map(pack, columns, columns.values()))
    return {
        "kind": table.kind,
        "tracks": [
            {"label": t.label.text, "low": t.low, "high": t.high, "lanes": t.lanes} for t in table.tracks
        ],
        "columns": [
            {"name": c.name, "type": c.type, "delta": c.delta, "blob": blobs.add(c.packed)} for c in packed
        ],
    }


def _layout(tracks: Tracks) -> list[tuple[int, int, str]]:
    """(table, track, group) from top to bottom: by process, its host first, then device by device."""
    rows = [
        ((track.label.place, ORDER.index(table.kind), k), (i, k, track.label.group))
        for i, table in enumerate(tracks.tables)
        for k, track in enumerate(table.tracks)
    ]
    return [row for _, row in sorted(rows)]


def _longest_names(tracks: Tracks) -> list[int]:
    """The kernels that take most of the time, each of which gets a colour."""
    kernels = tracks.table("kernel")
    if kernels is None:
        return []
    total = np.bincount(kernels.name, weights=kernels.duration_ns)
    return [code for code in np.argsort(-total, kind="stable")[:COLOURED_NAMES].tolist() if total[code]]


def _pair(row: GapRow) -> Document:
    return {
        "previous": printable(str(row.key["previous"])),
        "next": printable(str(row.key["next"])),
        "where": row.where,
        "boundaries": row.boundaries,
        "overlapping": row.overlapping,
        "median": row.gap_ns.median,
        "p10": row.gap_ns.p10,
        "p90": row.gap_ns.p90,
        "head": row.head_ns,
        "white": row.white_ns,
    }


def _steps(steps: Overlay | None) -> Document | None:
    if steps is None:
        return None
    return {
        "label": printable(steps.label),
        "kernels": steps.kernels,
        "alike": steps.alike,
        "point": steps.point.tolist(),
        "shown": steps.shown.tolist(),
        "start_ns": steps.start_ns.tolist(),
        "median_ns": steps.median_ns.tolist(),
        "length_ns": steps.length_ns.tolist(),
    }


def _panels(panels: StepPanels) -> Document:
    return {
        "budget": [(printable(label), ns) for label, ns in panels.budget] if panels.budget else None,
        "prediction": asdict(panels.prediction) if panels.prediction else None,
    }


def _inside(panels: StepPanels, blobs: _Blobs) -> Document | None:
    inside = panels.inside
    if inside is None or not len(inside.sm):
        return None
    tracks, place = lay_out_sms(inside.sm, inside.kind, inside.start_ns, inside.duration_ns)
    return {
        "file": "inside the megakernel",
        "origin": "0",
        "offset": 0,
        "end": tracks.end_ns,
        **_tables(tracks, blobs),
        "top": [],
        "critical": place[inside.critical].tolist(),
    }


# Two runs


def _difference(comparison: Comparison) -> Document:
    return {
        "notes": [printable(note) for note in comparison.notes],
        "pairs": [_change(change, ("previous", "next")) for change in comparison.pairs[:MOST_PAIRS]],
        "classes": [_change(change, ("class",)) for change in comparison.classes],
    }


def _change(change: Change, words: tuple[str, ...]) -> Document:
    return {
        **dict(zip(words, map(printable, change.key), strict=True)),
        "where": change.where,
        "first_count": change.first_count,
        "second_count": change.second_count,
        "first_ns": change.first_ns,
        "second_ns": change.second_ns,
        "difference_ns": change.difference_ns,
    }
