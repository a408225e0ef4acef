"""Write a synthetic nsys export of any size, with the full column list of schema 3.20."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, memoryBandwidth INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
  gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
  blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
  staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
  gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
  sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
PROCESS = 1601
GLOBAL_PID = (1 << 48) | (PROCESS << 24)
NAMES = 40  # distinct kernels


def write_trace(path: Path, kernels: int, ranges: int) -> None:
    """Write `kernels` eager kernels on one stream, as many launch calls, and `ranges` NVTX ranges."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + SCHEMA)
        names = [f"void layer_{i}<float, {i}>(float*, int)" for i in range(NAMES)]
        strings = [*names, "cudaLaunchKernel_v7000", "decode_step"]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(strings))
        db.executemany(
            "INSERT INTO META_DATA_EXPORT VALUES (?, ?)",
            [("EXPORT_PRODUCT_VERSION", "2025.3.2.0"), ("EXPORT_SCHEMA_VERSION", "3.20.3")],
        )
        mode = "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE"
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, 'Node')", (mode,))
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 4814304000000)")
        db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, ?)", (PROCESS,))
        _insert(db, "CUPTI_ACTIVITY_KIND_KERNEL", 28, _kernel_rows(kernels))
        _insert(db, "CUPTI_ACTIVITY_KIND_RUNTIME", 8, _call_rows(kernels))
        _insert(db, "NVTX_EVENTS", 11, _range_rows(kernels, ranges))


def _insert(db: sqlite3.Connection, table: str, columns: int, rows: Iterator[tuple[object, ...]]) -> None:
    db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * columns)})", rows)


def _start_ns(i: int) -> int:
    return 1_000_000_000 + 2_400 * i + 32 * ((i * 7919) % 29)


def _kernel_rows(count: int) -> Iterator[tuple[object, ...]]:
    for i in range(count):
        start, name = _start_ns(i), (i * 31) % NAMES
        shape = (1, 1, 16, 64, 1, 1, 256, 1, 1, 0, 0, 0, 155713536, i, 32768, None, 0)
        yield (
            start,
            start + 1_056 + 32 * (i % 17),
            0,
            1,
            0,
            13,
            i + 700,
            GLOBAL_PID,
            name,
            name,
            name,
            *shape,
        )


def _call_rows(count: int) -> Iterator[tuple[object, ...]]:
    for i in range(count):
        start = 999_991_000 + 2_400 * i + (i * 104729) % 300
        yield (start, start + 2_000, 0, GLOBAL_PID + PROCESS, i + 700, NAMES, 0, None)


def _range_rows(kernels: int, count: int) -> Iterator[tuple[object, ...]]:
    each = max(1, kernels // max(1, count))
    for i in range(count):
        start, end = _start_ns(i * each) - 9_000, _start_ns((i + 1) * each) - 9_100
        yield (start, end, 59, None, None, None, None, GLOBAL_PID + PROCESS, None, NAMES + 1, 0)


if __name__ == "__main__":
    write_trace(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
