"""The gap report as CSV, one line a row, the file name first."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tracekit.analysis.gaps import GapReport, flatten


def gaps_csv(reports: Sequence[GapReport]) -> str:
    """All rows of all traces under one header; no rows give the empty string."""
    rows = [{"file": report.recording.file} | flatten(row) for report in reports for row in report.rows]
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _harmless(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _harmless(value: object) -> object:
    # A spreadsheet runs a text that begins like a formula; a leading quote makes it text.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
