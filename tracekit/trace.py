"""The model: a trace as a few tables of columns, and what was recorded and how.

Every reader makes a `Trace`; every analysis takes one. Times are int64 nanoseconds on the trace's
own clock, intervals half-open. Columns of one table have equal length. `-1` in a column of row
numbers or codes means "not in the file".
"""

from __future__ import annotations

import html
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from tracekit.codes import encode, encode_rows, find_first

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

NONE = np.iinfo(np.int64).min
"""An integer that is not recorded: a kernel outside any graph has `graph_node == NONE`."""

WHOLE_CONTEXT = 2**32 - 1
"""The stream number of a wait for every stream of its context."""


@dataclass(frozen=True)
class TraceWarning:
    """Something lost or doubtful: a stable `code`, a sentence, and how many rows it concerns."""

    code: str
    message: str
    count: int


@dataclass(frozen=True)
class Gpu:
    """A GPU of the machine, as the recording describes it."""

    device: int
    name: str
    memory_bandwidth_bytes_per_s: int | None


@dataclass(frozen=True)
class StreamKey:
    """(process, device, context, stream): a stream number alone means nothing."""

    process: int
    device: int
    context: int
    stream: int


class Table:
    """Columns of equal length; a frozen dataclass of arrays."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Kernels(Table):
    """Kernels in order of stream key, start, end, file row."""

    start_ns: Ints
    end_ns: Ints
    stream: Codes  # into Trace.streams
    name: Codes  # into Trace.names
    correlation: Ints
    graph_node: Ints  # NONE outside a graph replay
    call: Codes  # row of Trace.calls that launched it
    grid: NDArray[np.int32] | None = None  # (n, 3), read only when asked for
    block: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Copies(Table):
    """Copies and memsets, in file order."""

    start_ns: Ints
    end_ns: Ints
    stream: Codes
    moved_bytes: Ints
    memset: NDArray[np.bool_]


@dataclass(frozen=True)
class Calls(Table):
    """CUDA runtime and driver calls of the host, in order of start."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints  # the recording's global thread id; `>> 24` is the process
    name: Codes
    correlation: Ints


@dataclass(frozen=True)
class Waits(Table):
    """Host waits for a stream, or for a whole context (stream number `WHOLE_CONTEXT`)."""

    start_ns: Ints
    end_ns: Ints
    stream: Codes


@dataclass(frozen=True)
class Ranges(Table):
    """NVTX ranges in order of start; a range that was never closed ends with the trace."""

    start_ns: Ints
    end_ns: Ints
    name: Codes  # into Trace.range_names, `domain:name` or `name`
    thread: Ints
    process_wide: NDArray[np.bool_]  # start/end ranges; push/pop ranges belong to their thread


@dataclass(frozen=True)
class GraphNodes(Table):
    """Graph nodes as they were created; `original` is the captured node of an instantiated one."""

    start_ns: Ints
    thread: Ints
    node: Ints
    original: Ints


@dataclass(frozen=True)
class OpaqueReplays(Table):
    """Graph replays recorded as a whole: their kernels are not in the file."""

    start_ns: Ints
    end_ns: Ints
    stream: Codes
    correlation: Ints
    graph: Ints


@dataclass(frozen=True)
class Recording:
    """What was recorded, with what, and how."""

    file: str
    nsys_version: str | None
    schema_version: str | None
    graph_trace: Literal["node", "graph"] | None
    gpus: tuple[Gpu, ...]
    gpu_of_device: dict[tuple[int, int], int]  # (process, CUDA device) -> Gpu.device
    warnings: tuple[TraceWarning, ...]
    product: str = "nsys"  # what recorded it


TABLES = ("kernels", "copies", "calls", "waits", "ranges", "graph_nodes", "opaque_replays")


@dataclass(frozen=True)
class Trace:
    """One recording, read."""

    recording: Recording
    streams: tuple[StreamKey, ...]
    names: tuple[str, ...]  # kernels and calls
    range_names: tuple[str, ...]
    kernels: Kernels
    copies: Copies
    calls: Calls
    waits: Waits
    ranges: Ranges
    graph_nodes: GraphNodes
    opaque_replays: OpaqueReplays

    @property
    def start_ns(self) -> int:
        """Start of the first GPU activity."""
        return min(int(t.start_ns.min()) for t in self._gpu_tables())

    @property
    def end_ns(self) -> int:
        """End of the last GPU activity."""
        return max(int(t.end_ns.max()) for t in self._gpu_tables())

    @property
    def span_ns(self) -> int:
        """From the start of the first GPU activity to the end of the last."""
        return self.end_ns - self.start_ns

    def gpu_of(self, process: int, device: int) -> Gpu | None:
        """The GPU behind a process's CUDA device; without a map the only kind there is, else None."""
        number = self.recording.gpu_of_device.get((process, device))
        if number is not None:
            return next((gpu for gpu in self.recording.gpus if gpu.device == number), None)
        names = {gpu.name for gpu in self.recording.gpus}
        return self.recording.gpus[0] if len(names) == 1 else None

    def frame(self, table: str) -> pd.DataFrame:
        """A table as a DataFrame: `kernels`, `copies`, `calls`, `waits`, `ranges`, ...

        Codes are spelled out: stream keys as four columns, names as categories.
        """
        return _frame(self, getattr(self, table))

    def __repr__(self) -> str:
        return (
            f"<Trace {self.recording.file}: {len(self.kernels):,} kernels, {len(self.copies):,} copies, "
            f"{len(self.ranges):,} ranges, {len(self.opaque_replays):,} opaque replays>"
        )

    def _repr_html_(self) -> str:
        sizes = {name: len(getattr(self, name)) for name in TABLES}
        cells = "".join(f"<tr><td>{name}</td><td>{size:,}</td></tr>" for name, size in sizes.items())
        return f"<p>{html.escape(repr(self))}</p><table><tr><th>table</th><th>rows</th></tr>{cells}</table>"

    def _gpu_tables(self) -> list[Kernels | Copies | OpaqueReplays]:
        return [t for t in (self.kernels, self.copies, self.opaque_replays) if len(t)]


def process_of(thread: Ints) -> Ints:
    """The process part of global thread or process ids; NONE stays NONE."""
    if len(thread) > 1 and thread.strides == (0,):  # one value throughout
        return np.broadcast_to(process_of(thread[:1]), thread.shape)
    return np.where(thread == NONE, NONE, thread >> 24)


def join_calls(kernel_process: Ints, correlation: Ints, calls: Calls) -> Codes:
    """The call that launched each kernel: the first of its process with its correlation id, or -1."""
    call_process = process_of(calls.thread)
    processes, callers = encode(kernel_process)[1], encode(call_process)[1]
    if len(processes) == 1 and np.array_equal(processes, callers):
        return find_first(calls.correlation, np.where(correlation == NONE, NONE + 1, correlation))
    found = np.full(len(correlation), -1, dtype=np.int32)
    for process in processes.tolist():
        rows = np.flatnonzero((call_process == process) & (calls.correlation != NONE))
        mine = kernel_process == process
        at = find_first(calls.correlation[rows], correlation[mine])
        if len(rows):
            found[mine] = np.where(at >= 0, rows[at], -1)
    return found


def encode_streams(columns: list[list[Ints]]) -> tuple[list[Codes], tuple[StreamKey, ...]]:
    """Give the stream keys of several tables common codes.

    `columns` holds for each table its process, device, context and stream columns.
    """
    own = [encode_rows(table) for table in columns]
    joined = [np.concatenate(parts) for parts in zip(*(distinct for _, distinct in own), strict=True)]
    common, distinct = encode_rows(joined)
    keys = tuple(StreamKey(*map(int, row)) for row in zip(*distinct, strict=True))
    ends = np.cumsum([len(rows[0]) for _, rows in own])[:-1]
    return [part[code] for part, (code, _) in zip(np.split(common, ends), own, strict=True)], keys


def _frame(trace: Trace, table: Table) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, object] = {}
    for column in fields(table):  # type: ignore[arg-type]
        values = getattr(table, column.name)
        if values is None or values.ndim > 1:
            continue
        if column.name == "stream":
            keys = [(k.process, k.device, k.context, k.stream) for k in trace.streams] + [(-1, -1, -1, -1)]
            spelled = np.array(keys, dtype=np.int64)[values]
            for i, part in enumerate(("process", "device", "context", "stream")):
                columns[part] = spelled[:, i]
        elif column.name == "name":
            names = trace.range_names if isinstance(table, Ranges) else trace.names
            columns["name"] = pd.Categorical.from_codes(values, list(names))
        elif values.dtype == np.int64 and (values == NONE).any():
            columns[column.name] = pd.array(values, dtype="Int64")
            columns[column.name][values == NONE] = pd.NA  # type: ignore[index]
        else:
            columns[column.name] = values
    return pd.DataFrame(columns)
