"""A SQLite file, opened so that nothing is ever written to it or beside it.

SQLAlchemy owns the connection, the reflection and the statements. Integer columns of large tables
come from `sqlite_pages`, everything it declines from a SELECT.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote_from_bytes

import numpy as np
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import StaticPool

from tracekit.errors import TraceError
from tracekit.readers.sqlite_pages import (
    INTEGER,
    NULL,
    TEXT,
    DeclinedError,
    Ints,
    TextColumn,
    encode_texts,
    read_pages,
)

_BATCH_ROWS = 100_000
_MAX_IN = 500  # ids a statement; SQLite's own limit of variables is higher


@dataclass(frozen=True)
class SqliteFile:
    """An open file: what tables and columns it has, and columns of them on demand."""

    descriptor: int  # of the same file: its pages are read beside SQLite
    connection: sa.Connection
    root_pages: dict[str, int]
    _columns: dict[str, dict[str, int]] = field(default_factory=dict)
    _indirect: set[str] = field(default_factory=set)  # tables whose records lack some columns

    def has(self, table: str) -> bool:
        """Whether the table exists; lazy exports leave out empty ones."""
        return table in self.root_pages

    def has_rows(self, table: str) -> bool:
        """Whether the table exists and is not empty."""
        return (
            self.has(table)
            and self.connection.execute(_select(table, ["rowid"]).limit(1)).first() is not None
        )

    def columns(self, table: str) -> dict[str, int]:
        """Names of the table's columns with their positions; empty for a missing table."""
        if table not in self._columns:
            found = sa.inspect(self.connection).get_columns(table) if self.has(table) else []
            self._columns[table] = {c["name"]: i for i, c in enumerate(found)}
            # An INTEGER PRIMARY KEY is the rowid, a computed column is nowhere: not in the record.
            if any(c.get("primary_key") or c.get("computed") for c in found):
                self._indirect.add(table)
        return self._columns[table]

    def integers(self, table: str, names: Sequence[str]) -> list[Ints | None]:
        """Columns as int64 in rowid order; NULL and what is no integer is `NULL`; None if missing."""
        return [
            c if isinstance(c, np.ndarray) else None for c in self.read(table, [(n, INTEGER) for n in names])
        ]

    def read(self, table: str, wanted: Sequence[tuple[str, str]]) -> list[Ints | TextColumn | None]:
        """Columns by (name, INTEGER or TEXT) in rowid order; None for those the table lacks."""
        position = self.columns(table)
        present = sorted((position[name], kind, name) for name, kind in wanted if name in position)
        if not present:
            return [None] * len(wanted)
        values = self._read_present(table, present)
        by_name = {name: value for (_, _, name), value in zip(present, values, strict=True)}
        return [by_name.get(name) for name, _ in wanted]

    def rows(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Rows of a small table, None for columns it lacks."""
        present = [n for n in names if n in self.columns(table)]
        if not present:
            return []
        found = self.connection.execute(_select(table, present)).all()
        return [tuple(row[present.index(n)] if n in present else None for n in names) for row in found]

    def strings(self, table: str, ids: Ints) -> dict[int, str]:
        """The texts of the given distinct ids; an id that the table lacks is left out."""
        if not {"id", "value"} <= self.columns(table).keys():
            return {}
        statement = _select(table, ["id", "value"])
        found: dict[int, str] = {}
        for part in np.array_split(ids, len(ids) // _MAX_IN + 1):
            chosen = statement.where(sa.column("id").in_(part.tolist()))
            found.update((i, v) for i, v in self.connection.execute(chosen) if isinstance(v, str))
        return found

    def _read_present(self, table: str, present: list[tuple[int, str, str]]) -> list[Ints | TextColumn]:
        if table in self._indirect:
            return self._select_present(table, present)
        try:
            wanted = [(position, kind) for position, kind, _ in present]
            return read_pages(self.descriptor, self.root_pages[table], wanted)
        except DeclinedError:
            return self._select_present(table, present)

    def _select_present(self, table: str, present: list[tuple[int, str, str]]) -> list[Ints | TextColumn]:
        statement = _select(table, [name for _, _, name in present])
        result = self.connection.execution_options(yield_per=_BATCH_ROWS).execute(statement)
        batches = [list(zip(*batch, strict=True)) for batch in result.partitions(_BATCH_ROWS)]
        columns = [[v for batch in batches for v in batch[i]] for i in range(len(present))]
        return [
            _as_integers(values) if kind == INTEGER else encode_texts([_as_text(v) for v in values])
            for values, (_, kind, _) in zip(columns, present, strict=True)
        ]


@contextmanager
def open_sqlite(path: Path) -> Iterator[SqliteFile]:
    """Open the file read-only and hold a read transaction while it is used.

    A write-ahead log beside it is read from a private copy, since SQLite would write beside the
    original. Raises `TraceError` for what is damaged, locked or unreadable.
    """
    with ExitStack() as stack:
        try:
            readable = _without_log(path, stack)
            # Closing any descriptor of a file drops this process's locks on it: open ours before
            # SQLite takes the lock, close it after.
            file = stack.enter_context(readable.open("rb"))
            connection = stack.enter_context(_engine(readable, _checked_head(path, file)).connect())
            tables = connection.exec_driver_sql("SELECT name, rootpage FROM sqlite_master WHERE type='table'")
            roots = {name: root for name, root in tables if root}
            yield SqliteFile(file.fileno(), connection, roots)
        except (exc.DatabaseError, sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: {_explain(error)}") from error


def _checked_head(path: Path, file: BinaryIO) -> bytes:
    """The database header; a file shorter than its header says is cut off."""
    head = os.pread(file.fileno(), 100, 0)
    page_bytes = int.from_bytes(head[16:18])
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    pages = int.from_bytes(head[28:32]) if head[24:28] == head[92:96] else 0
    if len(head) < 100 or os.fstat(file.fileno()).st_size < pages * page_bytes:
        raise TraceError(f"{path}: this SQLite file is cut off; copy it or export the report again")
    return head


def _without_log(path: Path, stack: ExitStack) -> Path:
    path = path.resolve()  # SQLite's log lies beside the file that a link names
    log = path.with_name(path.name + "-wal")
    if not (log.is_file() and log.stat().st_size):
        return path
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracekit-")))
    shutil.copyfile(path, folder / "trace.sqlite")
    shutil.copyfile(log, folder / "trace.sqlite-wal")
    with sqlite3.connect(folder / "trace.sqlite") as copy:
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        copy.execute("PRAGMA journal_mode=DELETE")
    copy.close()
    return folder / "trace.sqlite"


def _engine(path: Path, head: bytes) -> sa.Engine:
    # A file whose header says "write-ahead log" but that has none is complete; opened as
    # immutable, SQLite creates no log beside it.
    immutable = "&immutable=1" if head[18:20] == b"\2\2" else ""
    uri = f"file:{quote_from_bytes(bytes(path.resolve()))}?mode=ro{immutable}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=1, isolation_level=None, check_same_thread=False)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("BEGIN")
        return connection

    return sa.create_engine("sqlite://", creator=connect, poolclass=StaticPool)


def _select(table: str, names: Sequence[str]) -> sa.Select[Any]:
    columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in names]
    return sa.select(*columns).select_from(sa.table(table, *columns))


def _as_integers(values: list[Any]) -> Ints:
    return np.fromiter((_as_integer(v) for v in values), dtype=np.int64, count=len(values))


def _as_integer(value: object) -> int:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**62 else NULL


def _as_text(value: object) -> str | None:
    return (
        None
        if value is None
        else value.decode("utf-8", "replace")
        if isinstance(value, bytes)
        else str(value)
    )


def _explain(error: Exception) -> str:
    reason = str(getattr(error, "orig", None) or error)
    if "locked" in reason:
        return "another program is writing to this file; wait until the export is finished"
    if isinstance(error, UnicodeDecodeError) or "malformed" in reason or "not a database" in reason:
        return "the database is damaged or cut off; export the report again (nsys export --type sqlite)"
    if "readonly" in reason or "unable to open" in reason:
        return f"cannot be opened ({reason}); an export that broke off leaves a journal: export again"
    return f"SQLite cannot read it: {reason}"


__all__ = ["INTEGER", "NULL", "TEXT", "SqliteFile", "open_sqlite"]
