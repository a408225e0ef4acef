"""The tables of an nsys export (schema 3.20) that a CUPTI recording fills, and their writer.

Names, columns and meanings are nsys's, so that a reader of its exports reads these too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = "3.20.3"
Row = tuple[Any, ...]

_GPU = "start end deviceId contextId greenContextId streamId correlationId globalPid"
# a column is INTEGER unless it is named in _TEXT
COLUMNS: Mapping[str, tuple[str, ...]] = {
    name: tuple(columns.split())
    for name, columns in {
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{_GPU} demangledName shortName mangledName launchType"
        " registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory"
        " localMemoryPerThread"
        " localMemoryTotal gridId graphNodeId",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_GPU} bytes copyKind srcKind dstKind graphNodeId",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU} value bytes memKind graphNodeId",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_GPU} graphId graphExecId",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_GPU} syncType eventId",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
        "NVTX_EVENTS": "start end eventType rangeId text globalTid endGlobalTid textId domainId",
        "StringIds": "id value",
        "TARGET_INFO_GPU": "id name memoryBandwidth clockRate smCount l2CacheSize totalMemory"
        " computeMajor computeMinor",
        "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
        "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
        "META_DATA_EXPORT": "name value",
        "META_DATA_CAPTURE": "name value",
    }.items()
}
_TEXT = {"text", "name", "value"}
_INTEGER_VALUE = {"CUPTI_ACTIVITY_KIND_MEMSET"}  # whose `value` is the byte that was set


class Strings:
    """Text to the id of its StringIds row, the same id for the same text."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id_of(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids) + 1)

    def rows(self) -> list[tuple[int, str]]:
        return [(number, text) for text, number in self._ids.items()]


def write_tables(path: Path, tables: Mapping[str, Iterable[Row]]) -> None:
    """Write the tables, rows in the order of COLUMNS; a table without rows is left out, as nsys does."""
    connection = sqlite3.connect(path)
    try:
        for name, rows in tables.items():
            _write_table(connection, name, list(rows))
        connection.commit()
    finally:
        connection.close()


def _write_table(connection: sqlite3.Connection, name: str, rows: list[Row]) -> None:
    if not rows:
        return
    columns = COLUMNS[name]
    declared = ", ".join(f'"{column}" {_type(name, column)}' for column in columns)
    marks = ", ".join("?" * len(columns))
    connection.execute(f"CREATE TABLE {name} ({declared})")
    connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608 - names are constants


def _type(table: str, column: str) -> str:
    return "TEXT" if column in _TEXT and table not in _INTEGER_VALUE else "INTEGER"
