"""What is doubtful in a recording: said beside every number, never hidden in one."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracekit.analysis.boundaries import Mask, find_replayed, starts_before_call
from tracekit.codes import encode, encode_rows
from tracekit.trace import NONE, Trace, TraceWarning, process_of

GRAPH_LAUNCH = re.compile(r"cu(da)?GraphLaunch")
KERNEL_LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")
BEGIN_CAPTURE = re.compile(r"cu(da)?StreamBeginCapture")
# Warnings after which idle time says more about the recording than about the GPU.
UNRELIABLE_IDLE = frozenset({"under_recorded_replays", "launches_without_kernels"})
RECORD_NODES = "record with --cuda-graph-trace=node to see them"


@dataclass(frozen=True)
class PartialReplays:
    """Replays with fewer kernels than the largest of their graph: how many, and which kernels they have."""

    replays: int
    kernel: Mask


def find_partial_replays(trace: Trace) -> PartialReplays:
    """Replays that cannot have been recorded whole; `kernel` marks the kernels of theirs that were.

    A graph is told by process and executable graph, a replay by its launch's correlation id too. Where
    all replays of a graph lack the same kernels, none is found.
    """
    kernels = trace.kernels
    partial = np.zeros(len(kernels), dtype=bool)
    rows, graph = find_replayed(trace)
    if not len(rows):
        return PartialReplays(0, partial)
    process = np.array([key.process for key in trace.streams], dtype=np.int64)[kernels.stream[rows]]
    replay, (of_process, of_graph, _) = encode_rows([process, graph, kernels.correlation[rows]])
    size = np.bincount(replay)
    graph_code, _ = encode_rows([of_process, of_graph])
    largest = np.zeros(len(size), dtype=np.int64)
    np.maximum.at(largest, graph_code, size)
    few = size < largest[graph_code]
    partial[rows] = few[replay]
    return PartialReplays(int(few.sum()), partial)


def check_recording(trace: Trace) -> tuple[TraceWarning, ...]:
    """Everything a reader of this trace's numbers has to know, the recording's own warnings first."""
    found = [
        _opaque_replays(trace),
        _under_recorded(trace),
        _lost_at_start(trace),
        _launches_without_kernels(trace),
        _kernels_without_call(trace),
        _kernels_before_call(trace),
        _callers_without_kernels(trace),
    ]
    return (*trace.recording.warnings, *(w for w in found if w is not None and w.count))


def _opaque_replays(trace: Trace) -> TraceWarning | None:
    count = len(trace.opaque_replays)
    return TraceWarning(
        "opaque_replays",
        f"graph replays recorded as a whole: their kernels are not in the file; {RECORD_NODES}",
        count,
    )


def _under_recorded(trace: Trace) -> TraceWarning | None:
    count = find_partial_replays(trace).replays
    return TraceWarning(
        "under_recorded_replays",
        "graph replays with fewer kernels than others of their graph: the rest was not recorded, or a "
        "conditional node took another way; idle time around them is unreliable",
        count,
    )


def _lost_at_start(trace: Trace) -> TraceWarning | None:
    """Launches before the first kernel's that have no kernel, outside any stream capture."""
    capture = _calls_named(trace, BEGIN_CAPTURE)
    launches = _calls_named(trace, KERNEL_LAUNCH)
    launched = trace.kernels.call[trace.kernels.call >= 0]
    if not len(launched):
        return None
    # Calls are in order of start. A launch that is being captured runs later, as part of a graph.
    first = min(int(launched.min()), int(capture[0]) if len(capture) else len(trace.calls))
    return TraceWarning(
        "lost_at_start",
        "launches at the start of the recording have no kernel in the file: events were dropped there",
        int((launches < first).sum()),
    )


def _calls_named(trace: Trace, pattern: re.Pattern[str]) -> NDArray[np.intp]:
    """Rows of the calls whose name begins so, in order of start."""
    codes = [i for i, name in enumerate(trace.names) if pattern.match(name)]
    return np.flatnonzero(np.isin(trace.calls.name, codes)) if codes else np.empty(0, dtype=np.intp)


def _launches_without_kernels(trace: Trace) -> TraceWarning | None:
    rows = _calls_named(trace, GRAPH_LAUNCH)
    with_kernels = np.zeros(len(trace.calls) + 1, dtype=bool)
    with_kernels[trace.kernels.call] = True
    return TraceWarning(
        "launches_without_kernels",
        "graph launches without a kernel in the file: replays were lost, or hold copies alone; idle time is "
        "unreliable",
        int((~with_kernels[rows] & ~_launched_opaque(trace, rows)).sum()),
    )


def _launched_opaque(trace: Trace, calls: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which of the calls launched a replay that is in the file as a whole; ids repeat across processes."""
    replays = trace.opaque_replays
    ours = process_of(trace.calls.thread[calls]), trace.calls.correlation[calls]
    process = np.array([key.process for key in trace.streams], dtype=np.int64)
    both = zip(ours, (process[replays.stream], replays.correlation), strict=True)
    code, _ = encode_rows([np.concatenate(columns) for columns in both])
    found: NDArray[np.bool_] = np.isin(code[: len(calls)], code[len(calls) :]) & (ours[1] != NONE)
    return found


def _kernels_without_call(trace: Trace) -> TraceWarning | None:
    if not len(trace.calls):
        return None  # said once as "calls were not recorded"
    return TraceWarning(
        "launch_not_in_file",
        "kernels whose launch call is not in the file: their cause is unknown, no range owns them",
        int((trace.kernels.call < 0).sum()),
    )


def _kernels_before_call(trace: Trace) -> TraceWarning | None:
    return TraceWarning(
        "kernel_before_call",
        "kernels that start before their own launch call: wrong correlation ids (a defect of CUPTI before "
        "CUDA 13.1 U1); their cause is given as unknown",
        int(starts_before_call(trace).sum()),
    )


def _callers_without_kernels(trace: Trace) -> TraceWarning | None:
    tables = (trace.kernels, trace.copies, trace.opaque_replays)
    used = np.sum([np.bincount(table.stream, minlength=len(trace.streams)) for table in tables], axis=0)
    active = {key.process for key, rows in zip(trace.streams, used, strict=True) if rows}
    unknown = {0, NONE}  # the process of a call without a thread
    callers = set(encode(process_of(trace.calls.thread))[1].tolist()) - unknown
    silent = sorted(callers - active)
    named = ", ".join(map(str, silent[:8])) + (" and more" if len(silent) > 8 else "")
    return TraceWarning(
        "process_without_kernels",
        f"processes with CUDA calls but no GPU activity in the file ({named}): another rank's recording, or "
        "events lost",
        len(silent),
    )
