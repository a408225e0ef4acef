"""The errors a user can meet: one family, caught once in `tracekit.cli.main`.

TracekitError               exit 1
  TraceError                the file cannot be read as a trace
  UnknownNameError          a model, GPU, range or workload that does not exist; lists what does
  CaptureError              the profiler or the workload did not run
  UsageError                exit 2, the command line contradicts itself
  UnanswerableError         exit 3, these files cannot answer that question honestly
"""

from __future__ import annotations


class TracekitError(Exception):
    """Something the user can act on: the message says what, where, and what to do."""

    exit_code = 1


class TraceError(TracekitError):
    """A file that is not a readable trace."""


class UnknownNameError(TracekitError):
    """A name that matches nothing; the message lists what there is."""


class CaptureError(TracekitError):
    """A recording that could not be made."""


class UsageError(TracekitError):
    """Arguments that contradict each other."""

    exit_code = 2


class UnanswerableError(TracekitError):
    """A question that the given recording cannot answer honestly."""

    exit_code = 3
