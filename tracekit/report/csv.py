"""The gap report as CSV, one line a row, the file name first."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tracekit.analysis.gaps import GapReport, flat_columns, flatten
from tracekit.report.names import printable

FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def gaps_csv(reports: Sequence[GapReport]) -> str:
    """All rows of all traces under one header; `reports` are of one grouping."""
    out = io.StringIO()
    header = ["file", *flat_columns(reports[0].by)]
    writer = csv.DictWriter(out, fieldnames=header, lineterminator="\n")
    writer.writeheader()
    for report in reports:
        for row in report.rows:
            cells = {"file": report.recording.file} | flatten(row)
            writer.writerow({name: _harmless(value) for name, value in cells.items()})
    return out.getvalue()


def _harmless(value: object) -> object:
    """Text that a spreadsheet will not run: a cell that begins like a formula gets a leading quote."""
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA) else shown
