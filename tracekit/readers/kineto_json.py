"""Reads the Chrome trace of PyTorch's profiler (Kineto): the one file that knows its categories and fields.

`ts` and `dur` are microseconds, since 2024 counted from `baseTimeNanoseconds`, before that from the epoch;
here they are nanoseconds since the epoch, exactly. The process id of a GPU row is its device, so the process
is found by the calls. https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracekit.codes import encode, encode_rows, find_first
from tracekit.errors import TraceError
from tracekit.readers.json_stream import Fields, read_list
from tracekit.trace import (
    NONE,
    WHOLE_CONTEXT,
    Calls,
    Codes,
    Copies,
    Gpu,
    GraphNodes,
    Ints,
    Kernels,
    OpaqueReplays,
    Ranges,
    Recording,
    StreamKey,
    Trace,
    TraceWarning,
    Waits,
    encode_streams,
    join_calls,
    process_of,
)

PRODUCT = "PyTorch profiler"
KERNEL, COPY, MEMSET, WAIT, CALL, RANGE = "kernel", "copy", "memset", "wait", "call", "range"
# In 2021 categories were written `Kernel`, `Memcpy`, `Runtime`. A `gpu_user_annotation` is a range drawn over
# the kernels it launched: no range of the host.
KINDS = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "cuda_sync": WAIT,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "user_annotation": RANGE,
}
SPOKEN = {KERNEL: "kernels", COPY: "copies", MEMSET: "memsets", WAIT: "host waits", CALL: "calls",
          RANGE: "ranges"}  # fmt: skip
SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
COLUMNS = (
    "start",
    "end",
    "pid",
    "tid",
    "name",
    "correlation",
    "device",
    "context",
    "stream",
    "node",
    "bytes",
)
GRAPH_LAUNCH = re.compile(r"(cu(da)?|hip)GraphLaunch")
MAX_TIME_NS = 2**61  # twice that is still a time: the base is added
DAY_NS = 86_400 * 10**9
MAX_PID, MAX_TID = 2**38, 2**24  # a thread is `pid << 24 | tid`
MAX_PROCESSES = 256  # looked at to find whose a stream is


class _Event(msgspec.Struct, gc=False):
    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Args(msgspec.Struct, gc=False):
    device: Any = None
    context: Any = None
    stream: Any = None
    correlation: Any = None
    graph: Any = msgspec.field(name="graph id", default=None)
    node: Any = msgspec.field(name="graph node id", default=None)
    bytes: Any = None
    grid: Any = None
    block: Any = None


@dataclass(frozen=True)
class _Rows:
    """The rows of one kind: those of the batch that is being read, and the columns of those before."""

    batch: list[tuple[int, ...]] = field(default_factory=list)
    packed: list[Ints] = field(default_factory=list)

    def pack(self) -> None:
        """Put the batch into columns: a tuple of integers takes ten times the memory."""
        if self.batch:
            self.packed.append(np.array(self.batch, dtype=np.int64).T.copy())
            self.batch.clear()

    def columns(self) -> dict[str, Ints]:
        """All rows by column, in the order of the file; the rows are given up."""
        names = (*COLUMNS, *SHAPE)[: len(self.packed[0])] if self.packed else ()
        columns = {name: np.concatenate([part[i] for part in self.packed]) for i, name in enumerate(names)}
        self.packed.clear()
        return columns


@dataclass(frozen=True)
class _Found:
    """Everything the events hold that a trace needs; names by their code."""

    rows: dict[str, _Rows] = field(default_factory=lambda: {kind: _Rows() for kind in SPOKEN})
    names: dict[str, int] = field(default_factory=dict)
    range_names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Table:
    """The valid rows of one kind."""

    kind: str
    columns: dict[str, Ints]
    dropped: int

    def __getitem__(self, column: str) -> Ints:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.columns["start"])


def read(path: Path, *, shapes: bool = False, progress: Callable[[str], None] = lambda _: None) -> Trace:
    """Read a Chrome trace of PyTorch's profiler, plain or gzip.

    `shapes` also reads each kernel's grid and block. `progress` is told how far it is. Raises `TraceError`
    when the file is no such trace, breaks off or has no GPU activity, saying where and what to do.
    """
    found, fields, decoder = _Found(), Fields(), msgspec.json.Decoder(_Args)
    count = 0
    for events in read_list(path, "traceEvents", _Event, fields):
        for event in events:
            kind = _kind(event)
            if kind is not None:
                _add(found, kind, event, _args(decoder, event), shapes)
        for rows in found.rows.values():
            rows.pack()
        count += len(events)
        progress(f"{count:,} events")
    return _assemble(path, found, fields, shapes)


# One event


def _kind(event: _Event) -> str | None:
    category = event.cat
    if event.ph != "X" or not isinstance(category, str):
        return None
    kind = KINDS.get(category) or KINDS.get(category.lower())
    if kind is None and category.endswith(("_runtime", "_driver")):
        return CALL  # of other accelerators
    if category == "Operator" and str(event.name).startswith("ProfilerStep#"):
        return RANGE  # in 2021
    return kind


def _args(decoder: msgspec.json.Decoder[_Args], event: _Event) -> _Args:
    try:
        return decoder.decode(event.args)
    except msgspec.DecodeError:
        return _Args()


def _add(found: _Found, kind: str, event: _Event, args: _Args, shapes: bool) -> None:
    start, dur = _to_ns(bytes(event.ts)), _to_ns(bytes(event.dur))
    names = found.range_names if kind == RANGE else found.names
    name = event.name if isinstance(event.name, str) and event.name else f"unnamed {kind}"
    row: tuple[int, ...] = (
        start,
        NONE if NONE in (start, dur) else start + dur,
        _integer(event.pid),
        _integer(event.tid),
        names.setdefault(name, len(names)) if kind in (KERNEL, CALL, RANGE) else _waited_for(name),
        _integer(args.correlation),
        _first_integer(args.device, event.pid),
        _first_integer(args.context),
        _first_integer(args.stream, event.tid),
        _node(_integer(args.graph), _integer(args.node)),
        _integer(args.bytes),
    )
    if shapes and kind == KERNEL:
        row = (*row, *_three(args.grid), *_three(args.block))
    found.rows[kind].batch.append(row)


def _to_ns(number: bytes) -> int:
    """Microseconds as they are written, to the nearest nanosecond: a double would lose some; else NONE."""
    whole, _, fraction = number.partition(b".")
    try:
        value = int(whole + fraction.ljust(3, b"0")) if len(fraction) <= 3 else _round(number)
    except ValueError:
        value = _round(number)
    return value if -MAX_TIME_NS < value < MAX_TIME_NS else NONE


def _round(number: bytes) -> int:
    try:
        value = Decimal(number.decode()) * 1000
        return round(value) if abs(value) < MAX_TIME_NS else NONE
    except (InvalidOperation, ValueError):  # a text, a list, null
        return NONE


def _integer(value: object) -> int:
    """The integer in a number, in `7`, in `stream 7`; else NONE."""
    if type(value) is int:  # nearly always
        return value if -(2**63) < value < 2**63 else NONE
    if value is None:
        return NONE
    if isinstance(value, str):
        digits = re.search(r"\d{1,18}$", value)
        return int(digits[0]) if digits else NONE
    if isinstance(value, float) and value.is_integer():
        return _integer(int(value))
    return int(value) if isinstance(value, bool) else NONE


def _first_integer(first: object, second: object = None) -> int:
    """The first that is one, else 0."""
    number = _integer(first)
    if number == NONE:
        number = _integer(second)
    return 0 if number == NONE else number


def _node(graph: int, node: int) -> int:
    """The graph in the upper half, as CUPTI has it; 0 and 0 is what kernels outside any graph have."""
    if node in (NONE, 0) and graph in (NONE, 0):
        return NONE
    inside = max(node, 0)
    return inside if inside >> 32 or not 0 < graph < 2**31 else graph << 32 | inside


def _waited_for(name: str) -> int:
    """1 for a wait of the host for its stream, 2 for a whole context or device, 0 for none of them."""
    return 1 if name.startswith("Stream Sync") else 2 if name.startswith(("Context", "Device")) else 0


def _three(sizes: object) -> tuple[int, int, int]:
    sizes = sizes if isinstance(sizes, list) else []
    x, y, z = (size if isinstance(size, int) and 0 <= size < 2**31 else 0 for size in [*sizes, 0, 0, 0][:3])
    return x, y, z


# The trace


def _assemble(path: Path, found: _Found, fields: Fields, shapes: bool) -> Trace:
    tables = {kind: _table(kind, rows, _base_ns(fields)) for kind, rows in found.rows.items()}
    if not any(len(tables[kind]) for kind in (KERNEL, COPY, MEMSET)):
        raise TraceError(f"{path}: {_why_empty(tables)}")
    threads = _threads(tables[CALL], tables[RANGE])
    calls = _calls(tables[CALL], threads[0])
    activity = [tables[KERNEL], tables[COPY], tables[MEMSET], _host_waits(tables[WAIT])]
    codes, streams = encode_streams(_keys(activity, calls, threads))
    kernels = _kernels(tables[KERNEL], codes[0], streams, calls, shapes)
    recording = _recording(path, fields, kernels, streams)
    names = tuple(found.names)
    empty, none = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
    return Trace(
        recording=replace(recording, warnings=_losses(tables, kernels, calls, names)),
        streams=streams,
        names=names,
        range_names=tuple(found.range_names),
        kernels=kernels,
        copies=_copies(activity[1], activity[2], codes[1], codes[2]),
        calls=calls,
        waits=Waits(activity[3]["start"], activity[3]["end"], codes[3]),
        ranges=_ranges(tables[RANGE], threads[1]),
        graph_nodes=GraphNodes(empty, empty, empty, empty),
        opaque_replays=OpaqueReplays(empty, empty, none, empty, empty),
    )


def _base_ns(fields: Fields) -> int:
    base = _to_ns(bytes(fields.get("baseTimeNanoseconds", b"0")) + b"e-3")
    return 0 if base == NONE else base


def _table(kind: str, rows: _Rows, base_ns: int) -> _Table:
    columns = rows.columns()
    if not columns:
        return _Table(kind, dict.fromkeys(COLUMNS, np.empty(0, dtype=np.int64)), 0)
    valid = _valid(columns["start"], columns["end"])
    columns = {name: values[valid] for name, values in columns.items()}
    columns |= {"start": columns["start"] + base_ns, "end": columns["end"] + base_ns}
    return _Table(kind, columns, len(valid) - int(valid.sum()))


def _valid(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Rows that can be true; one at 0 cannot where another of its kind is a day away (kineto#80)."""
    valid: NDArray[np.bool_] = (start != NONE) & (end >= start)
    far = int(start[valid].max(initial=0)) > DAY_NS
    valid &= (start != 0) | ((end != 0) & (not far))
    return valid


def _why_empty(tables: dict[str, _Table]) -> str:
    if sum(table.dropped for table in tables.values()):
        return "every GPU activity of this trace has an impossible time: record it again"
    if len(tables[CALL]):
        return (
            "CUDA calls were recorded but no GPU activity (no permission, or another tool held the GPU's "
            "profiler); record again"
        )
    return (
        "a Chrome trace without GPU activity; record it with torch.profiler and "
        "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    )


def _threads(calls: _Table, ranges: _Table) -> list[Ints]:
    """`pid << 24 | tid` of both tables; where a thread id is longer than 24 bits, all are numbered."""
    pid, tid = (np.concatenate([calls[column], ranges[column]]) for column in ("pid", "tid"))
    pid = np.where((pid >= 0) & (pid < MAX_PID), pid, 0)
    if len(tid) and (tid.min() < 0 or tid.max() >= MAX_TID):
        tid = encode(tid)[0].astype(np.int64) % MAX_TID
    return np.split(pid << 24 | tid, [len(calls)])


def _calls(table: _Table, thread: Ints) -> Calls:
    order = np.argsort(table["start"], kind="stable")
    start, end, thread, correlation = (
        column[order] for column in (table["start"], table["end"], thread, table["correlation"])
    )
    return Calls(start, end, thread, table["name"][order].astype(np.int32), correlation)


def _ranges(table: _Table, thread: Ints) -> Ranges:
    order = np.lexsort((-table["end"], table["start"]))  # an outer range before the inner one
    return Ranges(
        start_ns=table["start"][order],
        end_ns=table["end"][order],
        name=table["name"][order].astype(np.int32),
        thread=thread[order],
        process_wide=np.zeros(len(table), dtype=bool),
    )


def _host_waits(table: _Table) -> _Table:
    """Waits of the host; the category also holds what waits on the device."""
    kept = table["name"] > 0
    columns = {name: values[kept] for name, values in table.columns.items()}
    columns["stream"] = np.where(columns["name"] == 2, WHOLE_CONTEXT, columns["stream"])
    return _Table(table.kind, columns, table.dropped)


# Whose a stream is


def _keys(activity: list[_Table], calls: Calls, threads: list[Ints]) -> list[list[Ints]]:
    """Process, device, context and stream of each table.

    A GPU row does not name its process. A stream is of the process whose calls launched most of its rows: a
    file merged of several processes has each correlation id several times.
    """
    places = [[table[column] for column in ("device", "context", "stream")] for table in activity]
    everything = [np.concatenate(parts) for parts in zip(*places, strict=True)]
    code, distinct = encode_rows(everything)
    votes, processes = _vote(activity, calls, code, len(distinct[0]))
    if len(processes):
        owner = np.where(votes.any(axis=0), votes.argmax(axis=0), votes.sum(axis=1).argmax())
        process = processes[owner[code]]
    else:
        hosts = encode(process_of(threads[1]))[1]
        process = np.full(len(code), hosts[0] if len(hosts) == 1 else 0)
    ends = np.cumsum([len(table) for table in activity])[:-1]
    return [[part, *place] for part, place in zip(np.split(process, ends), places, strict=True)]


def _vote(activity: list[_Table], calls: Calls, code: Codes, streams: int) -> tuple[Ints, Ints]:
    """How many rows of each stream each process launched: (processes x streams, the processes).

    Of several calls with the row's correlation id, the last before it launched it.
    """
    callers, processes = encode(process_of(calls.thread))
    most = np.argsort(-np.bincount(callers, minlength=len(processes)), kind="stable")[:MAX_PROCESSES]
    start, correlation = (np.concatenate([table[c] for table in activity]) for c in ("start", "correlation"))
    launched, launcher = np.full(len(start), NONE), np.full(len(start), -1)
    for row, process in enumerate(most):
        mine = np.flatnonzero((callers == process) & (calls.correlation != NONE))
        at = find_first(calls.correlation[mine], correlation)
        known = np.flatnonzero(at >= 0)
        call_start = calls.start_ns[mine[at[known]]]
        later = (call_start <= start[known]) & (call_start > launched[known])
        launched[known[later]], launcher[known[later]] = call_start[later], row
    votes = np.zeros((len(most), streams), dtype=np.int64)
    np.add.at(votes, (launcher[launcher >= 0], code[launcher >= 0]), 1)
    return votes, processes[most]


# The GPU's tables


def _kernels(
    table: _Table, stream: Codes, streams: tuple[StreamKey, ...], calls: Calls, shapes: bool
) -> Kernels:
    process = np.array([key.process for key in streams], dtype=np.int64)[stream]
    call = join_calls(process, table["correlation"], calls)
    order = np.lexsort((table["end"], table["start"], stream))
    grid, block = (
        np.stack([table[c][order] for c in part], axis=1).astype(np.int32) if shapes and len(table) else None
        for part in (SHAPE[:3], SHAPE[3:])
    )
    return Kernels(
        start_ns=table["start"][order],
        end_ns=table["end"][order],
        stream=stream[order],
        name=table["name"][order].astype(np.int32),
        correlation=table["correlation"][order],
        graph_node=table["node"][order],
        call=call[order],
        grid=grid,
        block=block,
    )


def _copies(copies: _Table, memsets: _Table, copy_code: Codes, memset_code: Codes) -> Copies:
    return Copies(
        start_ns=np.concatenate([copies["start"], memsets["start"]]),
        end_ns=np.concatenate([copies["end"], memsets["end"]]),
        stream=np.concatenate([copy_code, memset_code]),
        moved_bytes=np.concatenate([copies["bytes"], memsets["bytes"]]),
        memset=np.repeat([False, True], [len(copies), len(memsets)]),
    )


# What was recorded, and how


def _recording(path: Path, fields: Fields, kernels: Kernels, streams: tuple[StreamKey, ...]) -> Recording:
    gpus = _gpus(fields)
    numbers = {gpu.device for gpu in gpus}
    alone = len({key.process for key in streams}) == 1  # else each process may number its own devices
    schema = _decoded(fields, "schemaVersion")
    return Recording(
        file=path.name,
        nsys_version=None,
        schema_version=str(schema) if isinstance(schema, int | float | str) else None,
        graph_trace="node" if (kernels.graph_node != NONE).any() else None,
        gpus=gpus,
        gpu_of_device={
            (key.process, key.device): key.device for key in streams if alone and key.device in numbers
        },
        warnings=(),
        product=PRODUCT,
    )


def _gpus(fields: Fields) -> tuple[Gpu, ...]:
    """The GPUs of the machine; how fast their memory is, Kineto does not say."""
    listed = _decoded(fields, "deviceProperties")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return tuple(
        Gpu(number if (number := _integer(row.get("id"))) != NONE else i, str(row.get("name")), None)
        for i, row in enumerate(rows)
    )


def _decoded(fields: Fields, name: str) -> object:
    try:
        return msgspec.json.decode(fields.get(name, msgspec.Raw(b"null")))
    except msgspec.DecodeError:
        return None


def _losses(
    tables: dict[str, _Table], kernels: Kernels, calls: Calls, names: tuple[str, ...]
) -> tuple[TraceWarning, ...]:
    losses = [
        TraceWarning("rows_dropped", f"{SPOKEN[kind]} with impossible times were left out", table.dropped)
        for kind, table in tables.items()
    ]
    if not len(calls):
        losses.append(TraceWarning("no_calls", "launch calls were not recorded: causes are unknown", 1))
    launches = [i for i, name in enumerate(names) if GRAPH_LAUNCH.match(name)]
    launched = np.isin(calls.name, launches)[kernels.call] if len(calls) else np.zeros(0, dtype=bool)
    unknown = launched & (kernels.call >= 0) & (kernels.graph_node == NONE) if len(calls) else launched
    losses.append(
        TraceWarning(
            "graph_nodes_unknown",
            "kernels of a graph launch without a graph node id: boundaries inside a replay count as launch "
            "boundaries; a newer PyTorch records the ids",
            int(unknown.sum()),
        )
    )
    return tuple(loss for loss in losses if loss.count)
