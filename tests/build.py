"""A few-row nsys export of any schema version, so that trace and answer stand on one screen."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

Value = object  # what SQLite can hold, also where it makes no sense: that is what the tests are for
Version = tuple[int, ...]
Table = dict[str, Value]

PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
EVENT, STREAM_WAIT_EVENT, STREAM, CONTEXT = 1, 2, 3, 4  # syncType


@dataclass(frozen=True)
class Kernel:
    """A kernel; `id` joins it to its call, `node` is its graph node (see `node`)."""

    start: Value
    end: Value
    name: Value = "k"
    stream: Value = 7
    id: Value = None
    node: Value = None
    pid: int | None = 100
    device: Value = 0
    context: Value = 1
    host: int = 0


@dataclass(frozen=True)
class Call:
    """A runtime or driver call of the host; the thread is the process's first unless `tid` says."""

    start: Value
    end: Value
    id: Value = None
    name: Value = "cudaLaunchKernel_v7000"
    pid: int | None = 100
    tid: int = 0
    host: int = 0


@dataclass(frozen=True)
class Range:
    """An NVTX range; `registered` keeps its name in StringIds, `end` None was never closed."""

    start: Value
    end: Value
    name: Value = "step"
    domain: str | None = None
    kind: Value = PUSH_POP
    registered: bool = False
    pid: int = 100
    tid: int = 0
    host: int = 0


@dataclass(frozen=True)
class Copy:
    """A copy, or a memset."""

    start: Value
    end: Value
    bytes: Value = 4096
    memset: bool = False
    stream: Value = 7
    pid: int | None = 100
    device: Value = 0
    context: Value = 1
    host: int = 0


@dataclass(frozen=True)
class Wait:
    """A host wait for a stream, or another row of SYNCHRONIZATION."""

    start: Value
    end: Value
    kind: Value = STREAM
    stream: Value = 7
    pid: int | None = 100
    device: Value = 0
    context: Value = 1
    host: int = 0


@dataclass(frozen=True)
class Replay:
    """A graph replay recorded as a whole."""

    start: Value
    end: Value
    id: Value = None
    graph: Value = 1
    stream: Value = 7
    pid: int | None = 100
    device: Value = 0
    context: Value = 1
    host: int = 0


@dataclass(frozen=True)
class GraphNode:
    """A graph node as it was created; `original` is the captured node it was cloned from."""

    start: Value
    node: Value
    original: Value = None
    pid: int = 100
    tid: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU of the machine."""

    id: Value = 0
    name: Value = "NVIDIA H200"
    bandwidth: Value = 4_814_304_000_000


@dataclass(frozen=True)
class Diagnostic:
    """What the profiler said; severity 2 is a warning."""

    severity: Value
    text: Value


def node(graph: int, ordinal: int) -> int:
    """A graph node id: the executable graph above, the node's number below."""
    return graph << 32 | ordinal


def global_pid(pid: int, host: int = 0) -> int:
    """Hardware id (here: the host), VM id 1, process; signed as SQLite stores it."""
    number = host << 56 | 1 << 48 | pid << 24
    return number - (1 << 64) if number >= 1 << 63 else number


def build_trace(
    path: Path,
    *,
    kernels: Iterable[Kernel] = (),
    calls: Iterable[Call] = (),
    ranges: Iterable[Range] = (),
    copies: Iterable[Copy] = (),
    waits: Iterable[Wait] = (),
    graph_nodes: Iterable[GraphNode] = (),
    opaque_replays: Iterable[Replay] = (),
    gpus: Iterable[Gpu] = (),
    device_map: Iterable[tuple[Value, Value, Value]] = (),  # (pid, CUDA device, GPU)
    mode: str | None = None,  # of tracing graphs: Node or Graph
    diagnostics: Iterable[Diagnostic] = (),
    capture: Iterable[tuple[str, str]] = (),  # further rows of META_DATA_CAPTURE
    extra: dict[str, list[Table]] | None = None,  # further tables
    drop: Sequence[str] = (),  # "TABLE" or "TABLE.column" that this export lacks
    schema: str | None = "3.20.3",
    lazy: bool = True,  # tables without rows are left out
    page_bytes: int = 4096,
) -> Path:
    """Write the export and return its path."""
    version = tuple(int(part) for part in schema.split(".")) if schema else (0,)
    strings = _Strings()
    tables: dict[str, tuple[list[str], list[Table]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            _kernel_columns(version),
            [
                _place(k)
                | {"demangledName": strings.id(k.name), "shortName": strings.id(k.name)}
                | {"correlationId": k.id, "graphNodeId": k.node}
                for k in kernels
            ],
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            ["start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"]
            + ["callchainId"] * (version >= (2,)),
            [
                {"start": c.start, "end": c.end, "globalTid": _tid(c.pid, c.tid, c.host)}
                | {"correlationId": c.id, "nameId": strings.id(c.name)}
                for c in calls
            ],
        ),
        "NVTX_EVENTS": (_nvtx_columns(version), _nvtx_rows(list(ranges), strings)),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            [
                *_place_columns(version),
                *(["deprecatedSyncType"] * (version >= (3, 17, 1))),
                "syncType",
                "eventId",
            ],
            [_place(w) | {"syncType": w.kind} for w in waits],
        ),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
            [*_place_columns(version), "graphId", "graphExecId"],
            [_place(r) | {"correlationId": r.id, "graphId": r.graph} for r in opaque_replays],
        ),
        "CUDA_GRAPH_NODE_EVENTS" if version >= (3, 20) else "CUDA_GRAPH_EVENTS": (
            ["start", "end", "eventClass", "globalTid", "nameId", "graphNodeId", "originalGraphNodeId"],
            [
                {"start": n.start, "end": n.start, "globalTid": _tid(n.pid, n.tid, 0)}
                | {"graphNodeId": n.node, "originalGraphNodeId": n.original}
                for n in graph_nodes
            ],
        ),
        "TARGET_INFO_GPU": _gpu_table(version, gpus),
    }
    copies = list(copies)
    for table, memset in (("CUPTI_ACTIVITY_KIND_MEMCPY", False), ("CUPTI_ACTIVITY_KIND_MEMSET", True)):
        rows = [_place(c) | {"bytes": c.bytes} for c in copies if c.memset == memset]
        tables[table] = ([*_place_columns(version), "bytes", "graphNodeId"], rows)
    if version >= (3, 17, 1):
        mapped = [{"pid": p, "cudaId": d, "gpuId": g} for p, d, g in device_map]
        tables["TARGET_INFO_CUDA_DEVICE"] = (["gpuId", "cudaId", "pid"], mapped)
    if version >= (3, 11, 1):
        said = [{"severity": d.severity, "text": d.text} for d in diagnostics]
        tables["DIAGNOSTIC_EVENT"] = (["timestamp", "timestampType", "source", "severity", "text"], said)
    tables |= _meta_tables(version, schema, mode, capture)
    for table, more in (extra or {}).items():
        tables[table] = (list(more[0]), more)
    tables["StringIds"] = (["id", "value"], [{"id": i, "value": v} for v, i in strings.ids.items()])
    _write(path, _kept(tables, drop, lazy), page_bytes)
    return path


class _Strings:
    def __init__(self) -> None:
        self.ids: dict[Value, int] = {}
        self._next = count(1)

    def id(self, text: Value) -> Value:
        """The id of a text; an id that is none (NULL, a number) goes into the column as it is."""
        return self.ids.setdefault(text, next(self._next)) if isinstance(text, str | bytes) else text


def _kernel_columns(version: Version) -> list[str]:
    since: dict[str, Version] = {
        "mangledName": (2, 9, 1),
        "graphId": (3, 23, 3),
        "qmdPreexitDone": (3, 23, 3),
        "sharedMemoryRequestedPercentage": (3, 24, 8),
        "tensorSizeMinusOneElements": (3, 24, 18),
    }
    shape = [f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"]
    late = [column for column, first in since.items() if version >= first]
    return [
        *_place_columns(version),
        "demangledName",
        "shortName",
        "launchType",
        *shape,
        "graphNodeId",
        *late,
    ]


def _place_columns(version: Version) -> list[str]:
    green = ["greenContextId"] * (version >= (3, 7, 2))  # inserted in the middle, as nsys does
    return ["start", "end", "deviceId", "contextId", *green, "streamId", "correlationId", "globalPid"]


def _place(row: Kernel | Copy | Wait | Replay) -> Table:
    return {
        "start": row.start,
        "end": row.end,
        "deviceId": row.device,
        "contextId": row.context,
        "streamId": row.stream,
        "globalPid": None if row.pid is None else global_pid(row.pid, row.host),
    }


def _tid(pid: int | None, tid: int, host: int) -> int | None:
    return None if pid is None else global_pid(pid, host) + (tid or pid)


def _nvtx_columns(version: Version) -> list[str]:
    late = ["textId"] * (version >= (2, 9, 1)) + ["binaryData"] * (version >= (3, 16, 1))
    return ["start", "end", "eventType", "rangeId", "color", "text", "globalTid", "domainId", *late]


def _nvtx_rows(ranges: list[Range], strings: _Strings) -> list[Table]:
    domains = list(dict.fromkeys((r.domain, r.pid, r.host) for r in ranges if r.domain is not None))
    number = {domain: i + 1 for i, domain in enumerate(dict.fromkeys(name for name, _, _ in domains))}
    rows: list[Table] = [
        {"eventType": DOMAIN, "text": name, "globalTid": _tid(pid, 0, host), "domainId": number[name]}
        for name, pid, host in domains
    ]
    for r in ranges:
        name = {"textId": strings.id(r.name)} if r.registered else {"text": r.name}
        place = {"globalTid": _tid(r.pid, r.tid, r.host), "domainId": number[r.domain] if r.domain else 0}
        rows.append({"start": r.start, "end": r.end, "eventType": r.kind} | name | place)
    return rows


def _gpu_table(version: Version, gpus: Iterable[Gpu]) -> tuple[list[str], list[Table]]:
    if version < (2, 9, 1):
        return ["vmId", "deviceId", "name"], [{"deviceId": g.id, "name": g.name} for g in gpus]
    rows: list[Table] = [{"id": g.id, "name": g.name, "memoryBandwidth": g.bandwidth} for g in gpus]
    return ["vmId", "id", "name", "memoryBandwidth"], rows


def _meta_tables(
    version: Version, schema: str | None, mode: str | None, capture: Iterable[tuple[str, str]]
) -> dict[str, tuple[list[str], list[Table]]]:
    if schema is None:
        return {}
    about = {"EXPORT_SCHEMA_VERSION": schema, "EXPORT_PRODUCT_VERSION": "2025.3.2.0"}
    export: list[Table] = [{"name": name, "value": value} for name, value in about.items()]
    if version < (3, 4):
        return {"EXPORT_META_DATA": (["name", "value"], export)}
    prefix = "" if version >= (3, 24, 7) else "PROCESS_0:"
    said = [(f"{prefix}CUDA_GRAPH_TRACE_OPTIONS:MODE", mode)] if mode else []
    rows: list[Table] = [{"name": name, "value": value} for name, value in [*said, *capture]]
    return {
        "META_DATA_EXPORT": (["name", "value"], export),
        "META_DATA_CAPTURE": (["name", "value"], rows),
    }


def _kept(
    tables: dict[str, tuple[list[str], list[Table]]], drop: Sequence[str], lazy: bool
) -> dict[str, tuple[list[str], list[Table]]]:
    return {
        table: ([column for column in columns if f"{table}.{column}" not in drop], rows)
        for table, (columns, rows) in tables.items()
        if table not in drop and (rows or not lazy)
    }


_TEXT = {"value", "name", "text"}


def _write(path: Path, tables: dict[str, tuple[list[str], list[Table]]], page_bytes: int) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size={page_bytes}")
        db.execute("PRAGMA journal_mode=OFF")
        db.execute("PRAGMA synchronous=OFF")
        for table, (columns, rows) in tables.items():
            key = {("StringIds", "id"): "INTEGER NOT NULL PRIMARY KEY"}
            spelled = (f'"{c}" {key.get((table, c), "TEXT" if c in _TEXT else "INTEGER")}' for c in columns)
            db.execute(f'CREATE TABLE "{table}" ({", ".join(spelled)})')
            values = [[row.get(column) for column in columns] for row in rows]
            db.executemany(f'INSERT INTO "{table}" VALUES ({",".join("?" * len(columns))})', values)
        db.commit()
