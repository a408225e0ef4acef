"""Takes out of an nsys export what says who recorded it and where, and keeps every time in it.

python benchmarks/scrub_trace.py IN.sqlite OUT.sqlite

Emptied: environment, processes, threads, attached files. Blanked: host, user, command line, unique ids,
serial numbers. Replaced: strings that hold a path, by the last part of the path.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

EMPTIED = ("TARGET_INFO_SYSTEM_ENV", "PROCESSES", "ThreadNames", "ANALYSIS_FILE", "ProcessStreams")
PRIVATE_NAME = re.compile(
    r"ENVIRONMENT|DISPLAY_NAME|SESSION_ID|(?<![A-Z])(USER|HOST|UUID|COMMAND|ARG|DIRECTOR|FILENAME)"
    r"|(?<![A-Z])(DIR|PATH|FILE)(?![A-Z])"
)
PATH = re.compile(r"/(?:[\w.+-]+/)+")


def main() -> None:
    source, target = (Path(word) for word in sys.argv[1:3])
    if target.exists():
        sys.exit(f"error: {target} exists")
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as connection:
        scrub(connection)
        connection.commit()
        connection.execute("VACUUM")  # deleted rows stay in the file's free pages without it


def scrub(connection: sqlite3.Connection) -> None:
    """Scrub an open export in place."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table in tables.intersection(EMPTIED):
        connection.execute(f"DELETE FROM {table}")
    for table in tables.intersection(("META_DATA_CAPTURE", "META_DATA_EXPORT")):
        for rowid, name, value in connection.execute(f"SELECT rowid, name, value FROM {table}").fetchall():
            cleaned = "" if PRIVATE_NAME.search(name) else without_paths(value)
            connection.execute(f"UPDATE {table} SET value = ? WHERE rowid = ?", (cleaned, rowid))
    _clean_column(connection, tables, "StringIds", "value")
    _clean_column(connection, tables, "DIAGNOSTIC_EVENT", "text")
    _clean_column(connection, tables, "NVTX_EVENTS", "text")
    _blank_gpu(connection, tables)


def _clean_column(connection: sqlite3.Connection, tables: set[str], table: str, column: str) -> None:
    if table not in tables:
        return
    found = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} LIKE '%/%'").fetchall()
    for rowid, value in found:
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (without_paths(value), rowid))


def _blank_gpu(connection: sqlite3.Connection, tables: set[str]) -> None:
    for table in tables.intersection(("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")):
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for column in columns.intersection(("uuid", "luid", "ctxswDevPath", "ctrlDevPath")):
            connection.execute(f"UPDATE {table} SET {column} = ''")


def without_paths(text: str | None) -> str | None:
    """`/home/me/run/x.py line 3` becomes `x.py line 3`."""
    return PATH.sub("", text) if text else text


if __name__ == "__main__":
    main()
