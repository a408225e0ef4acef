"""What of an nsys export may travel: the tables and columns that say what ran when, and nothing else.

A list of what is kept, so that a table of the next version stays at home until somebody has looked at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracekit.readers.nsys_sqlite import (
    CAPTURE_META,
    DEVICE_MAP,
    DIAGNOSTIC,
    DOMAIN,
    EXPORT_META,
    GPU_INFO,
    GRAPH_NODES,
    GRAPH_TRACE,
    KERNEL,
    MEMCPY,
    MEMSET,
    NAME_COLUMNS,
    NVTX,
    PUSH_POP,
    RUNTIME,
    SHAPE_COLUMNS,
    START_END,
    STREAM_COLUMNS,
    STRINGS,
    SYNCHRONIZATION,
)
from tracekit.readers.sqlite_file import SqliteFile

_TIMES = ("start", "end")
_GPU = (*_TIMES, *STREAM_COLUMNS, "correlationId")


@dataclass(frozen=True)
class Kept:
    """Columns of one table that are kept: what tracekit reads, and what a copy holds besides unless slim.

    `texts` are the columns that hold text; `ids` those whose numbers stand for a text of `STRINGS`.
    """

    read: tuple[str, ...]
    more: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


_GREEN = "greenContextId"
_LAUNCH = (
    "launchType cacheConfig registersPerThread staticSharedMemory dynamicSharedMemory localMemoryPerThread "
    "localMemoryTotal gridId sharedMemoryExecuted sharedMemoryLimitConfig sharedMemoryRequestedPercentage "
    "graphId qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone clusterX clusterY clusterZ "
    "clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters"
)
_NODE = Kept(
    ("start", "globalTid", "graphNodeId", "originalGraphNodeId"),
    ("end", "eventClass", "graphId", "graphExecId", "originalGraphId"),
)
_META = Kept(("name", "value"), texts=("name", "value"))
TABLES: dict[str, Kept] = {
    KERNEL: Kept(
        (*_GPU, "graphNodeId", *NAME_COLUMNS, *SHAPE_COLUMNS), (_GREEN, *_LAUNCH.split()), ids=NAME_COLUMNS
    ),
    MEMCPY: Kept((*_GPU, "bytes"), (_GREEN, "copyKind", "srcKind", "dstKind", "graphNodeId", "copyCount")),
    MEMSET: Kept((*_GPU, "bytes"), (_GREEN, "memKind", "graphNodeId")),
    SYNCHRONIZATION: Kept((*_GPU, "syncType", "deprecatedSyncType"), (_GREEN, "eventId", "eventSyncId")),
    GRAPH_TRACE: Kept((*_GPU, "graphId"), (_GREEN, "graphExecId")),
    RUNTIME: Kept(
        (*_TIMES, "globalTid", "correlationId", "nameId"), ("eventClass", "returnValue"), ids=("nameId",)
    ),
    NVTX: Kept(
        (*_TIMES, "eventType", "globalTid", "domainId", "textId", "text"),
        ("rangeId", "category", "color", "endGlobalTid"),
        texts=("text",),
        ids=("textId",),
    ),
    **dict.fromkeys(GRAPH_NODES, _NODE),
    DIAGNOSTIC: Kept(("severity", "text"), ("timestamp", "timestampType", "source"), texts=("text",)),
    GPU_INFO: Kept(
        ("id", "deviceId", "name", "memoryBandwidth"),
        ("cuDevice", "smCount", "computeMajor", "computeMinor", "clockRate", "totalMemory", "l2CacheSize"),
        texts=("name",),
    ),
    DEVICE_MAP: Kept(("gpuId", "cudaId", "pid"), ("numMultiprocessors",)),
    **dict.fromkeys((*EXPORT_META, CAPTURE_META), _META),
    STRINGS: Kept(("id", "value"), texts=("value",)),
}
# Rows that are kept where not all are. Of NVTX neither thread names (39) nor what is no range.
NVTX_KINDS = (PUSH_POP, START_END, DOMAIN)
META_NAMES = ("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION", "%CUDA_GRAPH_TRACE_OPTIONS:MODE")
CUT_BY_TIME = (KERNEL, MEMCPY, MEMSET, SYNCHRONIZATION, GRAPH_TRACE)

# Where an export says who recorded it and where: the texts that must not be in a copy under any name.
_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
_WHO = re.compile(r"USER|HOST(?!_)|HOSTNAME", re.IGNORECASE)
_PROCESSES, _FILES = "PROCESSES", "ANALYSIS_FILE"


@dataclass(frozen=True)
class PrivateTexts:
    """What an export says of its machine: names of user and host, values of variables, everything else."""

    who: tuple[str, ...]
    variables: tuple[str, ...]
    other: tuple[str, ...]


def private_texts(file: SqliteFile) -> PrivateTexts:
    """The private texts of an open export, as they are."""
    who, variables, other = [], [], []
    for name, value in _private_rows(file):
        if "ENVIRONMENT" in name.upper():
            assignments = [line.partition("=") for line in re.split(r"[\n\0]", value)]
            variables += [after if equals else before for before, equals, after in assignments]
            who += [after for before, _, after in assignments if before in ("USER", "LOGNAME", "HOSTNAME")]
        elif _WHO.search(name):
            who.append(value)
        else:
            other.append(value)
    return PrivateTexts(tuple(who), tuple(variables), tuple(other))


def _private_rows(file: SqliteFile) -> Iterator[tuple[str, str]]:
    """(what it is, text)."""
    for table in (*EXPORT_META, CAPTURE_META, _ENVIRONMENT):
        for name, value in file.rows(table, ["name", "value"]):
            if isinstance(value, str) and not _is_kept_meta(str(name)):
                yield str(name), value
    for table, column in ((_PROCESSES, "name"), (_FILES, "filename")):
        yield from ((table, value) for (value,) in file.rows(table, [column]) if isinstance(value, str))


def _is_kept_meta(name: str) -> bool:
    return any(name.endswith(kept.lstrip("%")) for kept in META_NAMES)
