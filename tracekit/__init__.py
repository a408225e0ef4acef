"""Measures the real gap between GPU kernels, and what it costs a decode step.

import tracekit
trace = tracekit.read("trace.sqlite")
report = tracekit.gaps(trace, by="range")
report.table  # a pandas DataFrame
"""

from typing import Any

from tracekit.analysis.gaps import GapReport, Selection, gaps
from tracekit.errors import TracekitError
from tracekit.readers import read
from tracekit.trace import Trace

__all__ = ["GapReport", "Selection", "Trace", "TracekitError", "gaps", "read", "timeline"]


def timeline(trace: Trace, start_ns: int | None = None, end_ns: int | None = None) -> Any:
    """The timeline as a Plotly figure, of the whole trace or a window of its clock; for notebooks."""
    from tracekit.report.figure import timeline as draw  # Plotly loads slowly: only where it is asked for

    return draw(trace, start_ns, end_ns)
