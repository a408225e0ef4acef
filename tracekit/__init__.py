"""Measures the real gap between GPU kernels, and what it costs a decode step.

import tracekit
trace = tracekit.read("trace.sqlite")
report = tracekit.gaps(trace, by="range")
report.table  # a pandas DataFrame
"""

from tracekit.analysis.gaps import GapReport, Selection, gaps
from tracekit.errors import TracekitError
from tracekit.readers import read
from tracekit.trace import Trace

__all__ = ["GapReport", "Selection", "Trace", "TracekitError", "gaps", "read"]
