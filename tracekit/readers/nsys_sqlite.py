"""Reads the SQLite export of Nsight Systems: the one file that knows its tables and columns.

It decides by the columns present, never by the version. A missing table or column means "not
recorded". Rows that cannot be true are dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tracekit.codes import encode, encode_rows
from tracekit.errors import TraceError
from tracekit.readers.sqlite_file import SqliteFile, open_sqlite
from tracekit.readers.sqlite_pages import INTEGER, TEXT, TextColumn
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
    Trace,
    TraceWarning,
    Waits,
    encode_streams,
    join_calls,
    process_of,
)

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"  # driver calls too (eventClass 1)
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GRAPH_NODES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")  # from 3.20; before
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
EXPORT_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # from 3.4.0; 2.9.1 to 3.1.7
CAPTURE_META = "META_DATA_CAPTURE"
DIAGNOSTIC = "DIAGNOSTIC_EVENT"
GPU_INFO = "TARGET_INFO_GPU"
DEVICE_MAP = "TARGET_INFO_CUDA_DEVICE"  # from 3.17.1

NAME_COLUMNS = ("demangledName", "shortName", "mangledName")
SHAPE_COLUMNS = ["gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"]
PUSH_POP, START_END, DOMAIN = 59, 60, 75  # NVTX eventType
STREAM_WAIT, CONTEXT_WAIT = 3, 4  # syncType; 1 (event) names no stream, 2 waits on the device
FIRST_NODE_ON_HOST = 2**31 - 1  # deviceId of a graph interval whose first node is a host node
MAX_TIME_NS = 2**62
PID_AND_TID = (1 << 48) - 1  # globalTid: hardware id and VM id above, then 24 bits pid, 24 bits tid
PID = (1 << 24) - 1
LOSS = {
    "globalPid": "all are taken for one process",
    "deviceId": "all are taken for device 0",
    "contextId": "all are taken for one context",
    "streamId": "all are taken for one stream, gaps of several are merged",
    "correlationId": "their launch calls, causes and ranges are unknown",
    "graphNodeId": "replays cannot be told from launches",
}
STREAM_COLUMNS = ["globalPid", "deviceId", "contextId", "streamId"]


@dataclass(frozen=True)
class _Activity:
    """A table's valid rows: times, stream key as (process, device, context, stream), the rest."""

    table: str
    start_ns: Ints
    end_ns: Ints
    key: list[Ints]
    columns: dict[str, Ints]
    dropped: int

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class _Names:
    """Gives each text one code, whatever ids it has in the file."""

    code_of: dict[str, int] = field(default_factory=dict)

    def encode(self, texts: list[str]) -> Codes:
        return np.array([self.code_of.setdefault(text, len(self.code_of)) for text in texts], dtype=np.int32)

    def encode_ids(self, file: SqliteFile, ids: Ints, missing: str) -> Codes:
        code, distinct = encode(ids)
        texts = file.strings(STRINGS, distinct[distinct != NONE])
        spelled = [texts.get(i, missing if i == NONE else f"{missing} {i}") for i in distinct.tolist()]
        return self.encode(spelled)[code]


def read(path: Path, *, shapes: bool = False, progress: Callable[[str], None] = lambda _: None) -> Trace:
    """Read an nsys SQLite export.

    `shapes` also reads each kernel's grid and block. `progress` is told what is read next. Raises
    `TraceError` when the file is no export or has no GPU activity, saying which and what to do.
    """
    with open_sqlite(path) as file:
        _require_gpu_activity(file, path)
        progress("kernels")
        extra = ["correlationId", "graphNodeId", _name_column(file), *(SHAPE_COLUMNS if shapes else [])]
        kernels = _read_activity(file, KERNEL, extra)
        progress("copies, waits, graphs")
        copies, memsets = (_read_activity(file, table, ["bytes"]) for table in (MEMCPY, MEMSET))
        replays = _read_activity(file, GRAPH_TRACE, ["correlationId", "graphId"])
        activity = [kernels, copies, memsets, _read_waits(file), replays]
        progress("launch calls")
        calls = _read_calls(file)
        progress("ranges")
        return _assemble(file, path, activity, calls)


def _assemble(file: SqliteFile, path: Path, activity: list[_Activity], calls: _Calls) -> Trace:
    names, range_names = _Names(), _Names()
    active = _distinct_processes([*(t.key[0] for t in activity), process_of(calls.thread)])
    mask = _thread_mask(active)
    nvtx = _read_nvtx(file, active, mask)
    activity = [_with_process(table, mask, calls.thread) for table in activity]
    kernels, copies, memsets, waits, replays = activity
    if not any(len(table) for table in (kernels, copies, memsets, replays)):
        lost = sum(table.dropped for table in (kernels, copies, memsets, replays))
        raise TraceError(f"{path}: all {lost:,} rows of GPU activity have impossible times; record again")
    _require_possible_span(path, activity)
    codes, streams = encode_streams([table.key for table in activity])
    call_table = _calls_table(file, calls, mask, names)
    end_ns = max(int(end.max()) for end in (*(t.end_ns for t in activity), call_table.end_ns) if len(end))
    ranges, ranges_dropped = _read_ranges(file, nvtx, mask, end_ns, range_names)
    kernel_table = _kernel_table(file, kernels, codes[0], call_table, names)
    dropped = {t.table: t.dropped for t in activity} | {RUNTIME: calls.dropped, NVTX: ranges_dropped}
    return Trace(
        recording=_recording(file, path, mask, kernels, dropped),
        streams=streams,
        names=tuple(names.code_of),
        range_names=tuple(range_names.code_of),
        kernels=kernel_table,
        copies=_copy_table(copies, memsets, codes[1], codes[2]),
        calls=call_table,
        waits=Waits(waits.start_ns, waits.end_ns, codes[3]),
        ranges=ranges,
        graph_nodes=_read_graph_nodes(file, mask),
        opaque_replays=OpaqueReplays(
            replays.start_ns,
            replays.end_ns,
            codes[4],
            replays.columns["correlationId"],
            replays.columns["graphId"],
        ),
    )


# What is in the file at all


def _require_gpu_activity(file: SqliteFile, path: Path) -> None:
    if any(file.has_rows(table) for table in (KERNEL, GRAPH_TRACE, MEMCPY)):
        return
    raise TraceError(f"{path}: {_why_empty(file)}")


def _require_possible_span(path: Path, activity: list[_Activity]) -> None:
    """Sums of this many nanoseconds must fit 64 bits; a trace of over a century is damaged."""
    times = [(t.start_ns, t.end_ns) for t in activity if len(t)]
    span_ns = max(int(end.max()) for _, end in times) - min(int(start.min()) for start, _ in times)
    if span_ns * (1 + sum(len(start) for start, _ in times)) < 2**62:
        return
    total_ns = span_ns + sum(float((end.astype(float) - start).sum()) for start, end in times)
    if total_ns >= 2**62:
        raise TraceError(
            f"{path}: its times are {span_ns / 3.156e16:,.0f} years apart: damaged; record again"
        )


def _why_empty(file: SqliteFile) -> str:
    known = [t for t in (*EXPORT_META, STRINGS, RUNTIME, NVTX, GPU_INFO) if file.has(t)]
    if not known:
        return "a SQLite file, but not an nsys export: it has none of its tables"
    if file.has_rows(RUNTIME):
        return (
            "CUDA calls were recorded but no GPU activity: the GPU events were lost or never collected "
            "(program killed before the flush, no permission, or another process did the work)"
            f"{_said(file)}. Record again and let the program end by itself"
        )
    if not any(file.has(t) for t in EXPORT_META):
        return "the export broke off: it holds no activity and no description; run nsys export again"
    if file.has_rows(NVTX):
        return "only NVTX ranges were recorded, no CUDA; record with: nsys profile --trace=cuda,nvtx"
    return "an nsys export without CUDA activity; record with: nsys profile --trace=cuda,nvtx"


def _said(file: SqliteFile) -> str:
    said = sorted((w.message for w in _diagnostics(file)), key=lambda message: "CUDA event" not in message)
    return f'; the recording says "{said[0]}"' if said else ""


# Activity of the GPU


def _read_activity(file: SqliteFile, table: str, extra: list[str]) -> _Activity:
    """The table's valid rows; a column it lacks is NONE throughout."""
    wanted = ["start", "end", *STREAM_COLUMNS, *extra]
    found = file.integers(table, wanted)
    start, end = found[:2]
    if start is None or end is None:
        empty = np.empty(0, dtype=np.int64)
        return _Activity(table, empty, empty, [empty] * 4, dict.fromkeys(extra, empty), 0)
    valid = _valid(start, end)
    kept = slice(None) if valid.all() else valid
    columns = [np.full(len(start), NONE)[kept] if c is None else c[kept] for c in found]
    key = [process_of(columns[2]), *(_or_zero(c) for c in columns[3:6])]
    dropped = len(start) - int(valid.sum())
    return _Activity(table, columns[0], columns[1], key, dict(zip(extra, columns[6:], strict=True)), dropped)


def _valid(start: Ints, end: Ints) -> NDArray[np.bool_]:
    forward: NDArray[np.bool_] = end >= start
    if start.min(initial=1) > 0 and end.max(initial=0) <= MAX_TIME_NS:  # the common case, in fewer passes
        return forward
    # NONE lies below -MAX_TIME_NS; an end cannot, since it is not before its start.
    valid: NDArray[np.bool_] = forward & (start >= -MAX_TIME_NS) & (end <= MAX_TIME_NS)
    valid &= (start != 0) | (end != 0)
    return valid


def _or_zero(column: Ints) -> Ints:
    missing = column == NONE
    return np.where(missing, 0, column) if missing.any() else column


def _read_waits(file: SqliteFile) -> _Activity:
    """Waits of the host for a stream or a context; SYNCHRONIZATION also holds what is neither."""
    kind = next(
        (c for c in ("syncType", "deprecatedSyncType") if c in file.columns(SYNCHRONIZATION)), "syncType"
    )
    waits = _read_activity(file, SYNCHRONIZATION, [kind])
    of_context = waits.columns[kind] == CONTEXT_WAIT
    kept = of_context | (waits.columns[kind] == STREAM_WAIT)
    process, device, context, stream = waits.key
    stream = np.where(of_context, WHOLE_CONTEXT, stream)
    key = [column[kept] for column in (process, device, context, stream)]
    return replace(waits, start_ns=waits.start_ns[kept], end_ns=waits.end_ns[kept], key=key, columns={})


def _distinct_processes(columns: list[Ints]) -> Ints:
    """The processes of several columns, with the host bits of a merged report."""
    found: Ints = np.unique(np.concatenate([encode(column)[1] for column in columns]))
    return np.delete(found, np.flatnonzero(found == NONE))


def _thread_mask(processes: Ints) -> int:
    """What to keep of a global thread id: only pid and tid, unless two hosts share a pid."""
    return PID_AND_TID if len(np.unique(processes & PID)) == len(processes) else -1


def _with_process(table: _Activity, mask: int, threads: Ints) -> _Activity:
    """Processes as they are printed; rows without one belong to the only process that made calls."""
    process = table.key[0]
    callers = encode(process_of(threads))[1]
    alone = int(callers[0]) if len(callers) == 1 and callers[0] != NONE else 0
    filled = np.where(process == NONE, alone, process) & (mask >> 24)
    device = table.key[1]
    if table.table == GRAPH_TRACE and len(set(device.tolist()) - {FIRST_NODE_ON_HOST}) == 1:
        device = np.where(device == FIRST_NODE_ON_HOST, device.min(), device)
    return replace(table, key=[filled, device, *table.key[2:]])


def _copy_table(copies: _Activity, memsets: _Activity, copy_code: Codes, memset_code: Codes) -> Copies:
    return Copies(
        start_ns=np.concatenate([copies.start_ns, memsets.start_ns]),
        end_ns=np.concatenate([copies.end_ns, memsets.end_ns]),
        stream=np.concatenate([copy_code, memset_code]),
        moved_bytes=np.concatenate([copies.columns["bytes"], memsets.columns["bytes"]]),
        memset=np.repeat([False, True], [len(copies), len(memsets)]),
    )


# Kernels


def _name_column(file: SqliteFile) -> str:
    return next((c for c in NAME_COLUMNS if c in file.columns(KERNEL)), NAME_COLUMNS[0])


def _kernel_table(file: SqliteFile, raw: _Activity, stream: Codes, calls: Calls, names: _Names) -> Kernels:
    columns = raw.columns
    name = names.encode_ids(file, columns[_name_column(file)], "unnamed kernel")
    call = join_calls(raw.key[0], columns["correlationId"], calls)
    order = _order(stream, raw.start_ns, raw.end_ns)
    grid, block = (
        np.stack([columns[c][order] for c in part], axis=1).astype(np.int32) if part[0] in columns else None
        for part in (SHAPE_COLUMNS[:3], SHAPE_COLUMNS[3:])
    )
    return Kernels(
        start_ns=raw.start_ns[order],
        end_ns=raw.end_ns[order],
        stream=stream[order],
        name=name[order],
        correlation=columns["correlationId"][order],
        graph_node=columns["graphNodeId"][order],
        call=call[order],
        grid=grid,
        block=block,
    )


def _order(stream: Codes, start: Ints, end: Ints) -> slice | NDArray[np.intp]:
    """By stream, start, end, row. Exports are nearly always in order of start: then no full sort."""
    rising = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] >= end[:-1]))
    if not rising.all():
        return np.lexsort((end, start, stream))
    if len(stream) == 0 or stream.min() == stream.max():
        return slice(None)
    small = stream.astype(np.uint16) if stream.max() < 2**16 else stream  # sorted by radix
    return np.argsort(small, kind="stable")


# Calls of the host


@dataclass(frozen=True)
class _Calls:
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    correlation: Ints
    name_id: Ints
    dropped: int


def _read_calls(file: SqliteFile) -> _Calls:
    found = file.integers(RUNTIME, ["start", "end", "globalTid", "correlationId", "nameId"])
    start, end = found[:2]
    if start is None or end is None:
        empty = np.empty(0, dtype=np.int64)
        return _Calls(empty, empty, empty, empty, empty, 0)
    valid = _valid(start, end)
    kept: slice | NDArray[np.intp] = slice(None)
    if not valid.all() or (start[1:] < start[:-1]).any():
        kept = np.flatnonzero(valid)
        kept = kept[np.argsort(start[kept], kind="stable")]
    start, end, thread, correlation, name_id = (
        np.full(len(valid), NONE)[kept] if c is None else c[kept] for c in found
    )
    return _Calls(start, end, thread, correlation, name_id, len(valid) - int(valid.sum()))


def _calls_table(file: SqliteFile, raw: _Calls, mask: int, names: _Names) -> Calls:
    thread = _or_zero(raw.thread) & mask
    name = names.encode_ids(file, raw.name_id, "unnamed call")
    return Calls(raw.start_ns, raw.end_ns, thread, name, raw.correlation)


# NVTX ranges and graph nodes


@dataclass(frozen=True)
class _Nvtx:
    """All rows of the NVTX table: ranges, and the domains that name them."""

    start_ns: Ints
    end_ns: Ints
    kind: Ints
    thread: Ints
    domain: Ints
    text_id: Ints
    text: TextColumn


def _read_nvtx(file: SqliteFile, active: Ints, mask: int) -> _Nvtx | None:
    columns = ["start", "end", "eventType", "globalTid", "domainId", "textId"]
    found = file.read(NVTX, [*((c, INTEGER) for c in columns), ("text", TEXT)])
    start, end, kind = (c if isinstance(c, np.ndarray) else None for c in found[:3])
    if start is None or end is None or kind is None:
        return None
    missing = np.full(len(start), NONE)
    thread, domain, text_id = (c if isinstance(c, np.ndarray) else missing for c in found[3:6])
    text = found[6] if isinstance(found[6], TextColumn) else TextColumn(np.full(len(start), -1, np.int32), ())
    thread = _or_zero(thread)
    # A process that only has ranges may be another host's with the same pid: it keeps its host bits,
    # and owns no kernel.
    thread = np.where(np.isin(process_of(thread), active), thread & mask, thread)
    return _Nvtx(start, end, kind, thread, domain, text_id, text)


def _read_ranges(
    file: SqliteFile, nvtx: _Nvtx | None, mask: int, end_ns: int, names: _Names
) -> tuple[Ranges, int]:
    """Push/pop and start/end ranges; one never closed ends with the trace. Also: rows dropped."""
    if nvtx is None:
        empty, none = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return Ranges(empty, empty, none, empty, none.astype(bool)), 0
    start = nvtx.start_ns
    end = np.where(nvtx.end_ns == NONE, np.maximum(end_ns, start), nvtx.end_ns)
    is_range = (nvtx.kind == PUSH_POP) | (nvtx.kind == START_END)
    kept = np.flatnonzero(is_range & _valid(start, end))
    kept = kept[np.lexsort((-end[kept], start[kept]))]  # an outer range before the inner one
    name = _name_ranges(file, nvtx, names)[kept]
    ranges = Ranges(start[kept], end[kept], name, nvtx.thread[kept], nvtx.kind[kept] == START_END)
    return ranges, int(is_range.sum()) - len(kept)


def _name_ranges(file: SqliteFile, nvtx: _Nvtx, names: _Names) -> Codes:
    """Codes of `domain:name`, or `name` where the domain has none; -1 for what is no range."""
    text_code = nvtx.text.codes.astype(np.int64)
    code, rows = encode_rows([nvtx.kind, process_of(nvtx.thread), nvtx.domain, nvtx.text_id, text_code])
    registered = file.strings(STRINGS, np.unique(nvtx.text_id[nvtx.text_id != NONE]))
    combinations = list(zip(*(column.tolist() for column in rows), strict=True))

    def spell(id_: int, text: int) -> str:
        return nvtx.text.values[text] if text >= 0 else registered.get(id_, "unnamed range")

    # Domain 0 has no row: the default domain is nameless.
    domains = {(p, d): spell(i, t) for kind, p, d, i, t in combinations if kind == DOMAIN}
    codes = np.full(len(combinations), -1, dtype=np.int32)
    for at, (kind, p, d, i, t) in enumerate(combinations):
        if kind in (PUSH_POP, START_END):
            domain = domains.get((p, d))
            codes[at] = names.encode([f"{domain}:{spell(i, t)}" if domain else spell(i, t)])[0]
    return codes[code]


def _read_graph_nodes(file: SqliteFile, mask: int) -> GraphNodes:
    table = next((t for t in GRAPH_NODES if "graphNodeId" in file.columns(t)), "")
    wanted = ["start", "globalTid", "graphNodeId", "originalGraphNodeId"]
    start, thread, node, original = file.integers(table, wanted)
    if start is None or node is None:
        empty = np.empty(0, dtype=np.int64)
        return GraphNodes(empty, empty, empty, empty)
    missing = np.full(len(start), NONE)
    thread = missing * 0 if thread is None else _or_zero(thread) & mask
    return GraphNodes(start, thread, node, missing if original is None else original)


# What was recorded, and how


def _recording(
    file: SqliteFile, path: Path, mask: int, kernels: _Activity, dropped: dict[str, int]
) -> Recording:
    meta = dict(row for table in EXPORT_META for row in file.rows(table, ["name", "value"]))
    version = meta.get("EXPORT_SCHEMA_VERSION")
    return Recording(
        file=path.name,
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=version,
        graph_trace=_graph_trace(file, kernels),
        gpus=_gpus(file),
        gpu_of_device=_device_map(file, mask),
        warnings=(*_diagnostics(file), *_losses(file, dropped)),
    )


def _graph_trace(file: SqliteFile, kernels: _Activity) -> Literal["node", "graph"] | None:
    # The name gained and lost a prefix over the versions; its end stayed.
    for name, value in file.rows(CAPTURE_META, ["name", "value"]):
        if str(name).endswith("CUDA_GRAPH_TRACE_OPTIONS:MODE"):
            said = str(value).lower()
            if said in ("node", "graph"):
                return "node" if said == "node" else "graph"
    if (kernels.columns["graphNodeId"] != NONE).any():
        return "node"
    return "graph" if file.has_rows(GRAPH_TRACE) else None


def _gpus(file: SqliteFile) -> tuple[Gpu, ...]:
    """The GPUs of the machine; one whose number cannot be read is left out, for nothing can be said of it."""
    number = "id" if "id" in file.columns(GPU_INFO) else "deviceId"
    rows = file.rows(GPU_INFO, [number, "name", "memoryBandwidth"])
    return tuple(
        Gpu(
            i,
            name if isinstance(name, str) else "unnamed GPU",
            bandwidth if isinstance(bandwidth, int) and bandwidth else None,
        )
        for i, name, bandwidth in rows
        if isinstance(i, int)
    )


def _device_map(file: SqliteFile, mask: int) -> dict[tuple[int, int], int]:
    """(process, CUDA device) -> GPU; left empty where two hosts share a pid."""
    if mask != PID_AND_TID:
        return {}
    rows = file.rows(DEVICE_MAP, ["pid", "cudaId", "gpuId"])
    return {(pid, cuda): gpu for pid, cuda, gpu in rows if isinstance(gpu, int)}


def _diagnostics(file: SqliteFile) -> list[TraceWarning]:
    """What the profiler itself warned of: severity 2 (warning) and up."""
    rows = file.rows(DIAGNOSTIC, ["severity", "text"])
    texts = [without_paths(str(t)) for s, t in rows if isinstance(s, int) and s >= 2]
    return [TraceWarning("recording", text, texts.count(text)) for text in dict.fromkeys(texts)]


_PATH = re.compile(
    r"""(?P<quote>["'])(?:(?!(?P=quote)).)*[/\\](?:(?!(?P=quote)).)*(?P=quote)"""  # quoted: spaces too
    r"""|(?<!\w)(?:\w+:/{2,}|[A-Za-z]:[\\/]|\\\\|~[\w.-]*/|/)[^\s'",;:]+"""
)


def without_paths(text: str) -> str:
    """A recording's own text without its machine's paths: a trace travels."""
    return " ".join(_PATH.sub("<path>", text).split())


def _missing_columns(file: SqliteFile) -> list[str]:
    """What a kernel table without some of its columns cannot tell."""
    if not file.has_rows(KERNEL):
        return []
    columns = file.columns(KERNEL)
    lost = [f"kernels have no {column}: {loss}" for column, loss in LOSS.items() if column not in columns]
    return lost if set(NAME_COLUMNS) & columns.keys() else [*lost, "kernels have no names in the file"]


def _losses(file: SqliteFile, dropped: dict[str, int]) -> list[TraceWarning]:
    spoken = {KERNEL: "kernels", MEMCPY: "copies", MEMSET: "memsets", SYNCHRONIZATION: "host waits",
              GRAPH_TRACE: "graph replays", RUNTIME: "calls", NVTX: "ranges"}  # fmt: skip
    losses = [
        TraceWarning("rows_dropped", f"{spoken[table]} with impossible times were left out", count)
        for table, count in dropped.items()
        if count
    ]
    losses += [TraceWarning("column_missing", text, 1) for text in _missing_columns(file)]
    if not file.has_rows(RUNTIME):
        losses.append(TraceWarning("no_calls", "launch calls were not recorded: causes are unknown", 1))
    return losses
