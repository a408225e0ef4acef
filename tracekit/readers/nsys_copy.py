"""Writes a new SQLite file with the kept tables, columns and rows of an nsys export, in their order.

SQLite itself copies the numbers, and only numbers: a text where a number belongs is left out, as the reader
does. Every text goes through the given function.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from tracekit.errors import TracekitError
from tracekit.readers.nsys_schema import (
    CUT_BY_TIME,
    META_NAMES,
    NVTX_KINDS,
    TABLES,
    Kept,
)
from tracekit.readers.nsys_sqlite import (
    CAPTURE_META,
    DIAGNOSTIC,
    DOMAIN,
    EXPORT_META,
    KERNEL,
    NAME_COLUMNS,
    NVTX,
    RUNTIME,
    STREAM_COLUMNS,
    STRINGS,
    without_paths,
)
from tracekit.readers.sqlite_file import SqliteFile

BATCH_ROWS = 10_000

Clean = Callable[[str], str]
Column = sa.ColumnElement[Any]


@dataclass(frozen=True)
class Options:
    """What is copied: see `tracekit.scrub.Wanted`; the window is closed."""

    rename_kernels: bool
    rename_ranges: bool
    slim: bool
    window: tuple[int, int] | None


@dataclass(frozen=True)
class _Source:
    """The open export, what is wanted of it, and which columns of which tables that is."""

    file: SqliteFile
    options: Options
    columns: dict[str, list[str]]

    def has(self, table: str, *columns: str) -> bool:
        return set(columns) <= set(self.columns.get(table, []))


@dataclass(frozen=True)
class _Renamed:
    """New ids for kernel names: by old id, and their texts."""

    ids: dict[int, int]
    texts: list[tuple[int, str]]


def write(file: SqliteFile, path: Path, options: Options, clean: Clean) -> None:
    """Copy the export into the empty file `path`; a table without kept rows is left out, as nsys does.

    Raises `TracekitError` when the copy cannot be written.
    """
    columns = {table: _kept_columns(file, table, kept, options) for table, kept in TABLES.items()}
    source = _Source(file, options, {table: names for table, names in columns.items() if names})
    renamed = _define(source, clean)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as copy:
            _fill(source, renamed, copy)
    except sqlite3.Error as error:  # the source's own come as SQLAlchemy's
        raise TracekitError(f"{path.parent}: the copy cannot be written there ({error})") from error


def _fill(source: _Source, renamed: _Renamed, copy: sqlite3.Connection) -> None:
    # Without secure_delete the unused part of a page holds what was in memory there before.
    for setting in ("secure_delete=ON", "journal_mode=OFF", "synchronous=OFF"):
        copy.execute(f"PRAGMA {setting}")
    copy.execute("BEGIN")
    for table, names in source.columns.items():
        _copy_table(source, table, names, copy)
    if renamed.texts:
        copy.execute(_definition(STRINGS, ["id", "value"]))
        copy.executemany(_insertion(STRINGS, ["id", "value"]), renamed.texts)
    copy.execute("COMMIT")
    copy.execute("VACUUM")


def free_pages(path: Path) -> int:
    """Pages of the file that belong to no table: they may hold anything."""
    with closing(sqlite3.connect(path)) as copy:
        return int(copy.execute("PRAGMA freelist_count").fetchone()[0])


def texts_in(path: Path) -> Iterator[str]:
    """Every text that a SQLite file holds, in whichever column, and how its tables are defined."""
    with closing(sqlite3.connect(path)) as copy:
        tables = copy.execute("SELECT name, sql FROM sqlite_master").fetchall()
        for table, definition in tables:
            yield definition
            for _, column, *_ in copy.execute(f"PRAGMA table_info({table})").fetchall():
                query = f'SELECT DISTINCT "{column}" FROM {table} WHERE typeof("{column}") = \'text\''  # noqa: S608
                yield from (text for (text,) in copy.execute(query))


# Which columns and rows


def _kept_columns(file: SqliteFile, table: str, kept: Kept, options: Options) -> list[str]:
    there = file.columns(table)
    wanted = [*kept.read, *(() if options.slim else kept.more)]
    if table == KERNEL and (options.slim or options.rename_kernels):  # one name is read: the first there is
        names = [name for name in NAME_COLUMNS if name in there]
        wanted = [name for name in wanted if name not in names[1:]]
    found = [name for name in wanted if name in there]
    if table == NVTX and found and options.rename_ranges:  # the number takes the place of either name
        found = [*(name for name in found if name not in ("text", "textId")), "text"]
    return found


def _rows(source: _Source, table: str) -> list[Column]:
    """The conditions that a kept row of the table meets."""
    if table == STRINGS:
        return [
            sa.func.typeof(sa.column("value")) == "text",
            sa.func.typeof(sa.column("id")) == "integer",
            sa.func.tracekit_used(sa.column("id")) == 1,
        ]
    if table in (*EXPORT_META, CAPTURE_META):
        return [sa.or_(*(sa.column("name").like(name) for name in META_NAMES))]
    if table == DIAGNOSTIC and source.has(table, "severity"):
        return [sa.column("severity") >= 2]
    kinds = (
        [sa.column("eventType").in_(NVTX_KINDS)] if source.has(NVTX, "eventType") and table == NVTX else []
    )
    return [*kinds, *(_in_window(source, table) if source.options.window else [])]


def _in_window(source: _Source, table: str) -> list[Column]:
    """GPU work that overlaps the window, replays as a whole; its calls; the ranges around those."""
    assert source.options.window is not None
    low, high = source.options.window
    start, end, correlation = (_column(name) for name in ("start", "end", "correlationId"))
    if table in CUT_BY_TIME and source.has(table, "start", "end"):
        overlaps = sa.and_(start < high, sa.or_(end > low, start >= low))
        if table != KERNEL:
            return [overlaps]
        if not source.has(table, "graphNodeId", "correlationId"):
            return [sa.or_(overlaps, _column("rowid").in_(_last_before(source, low)))]
        replays = sa.select(correlation).select_from(sa.table(KERNEL)).where(overlaps)
        node = sa.column("graphNodeId").is_not(None)
        whole = sa.and_(node, correlation.in_(replays.where(node)))
        return [sa.or_(overlaps, whole, _column("rowid").in_(_last_before(source, low)))]
    if table == RUNTIME and source.has(table, "correlationId"):
        return [sa.func.tracekit_launched(correlation) == 1]
    if table == NVTX and source.has(table, "start", "end", "eventType"):
        first = min(low, _first_call(source, low))
        inside = sa.and_(start < high, sa.or_(end.is_(None), end > first))
        return [sa.or_(inside, sa.column("eventType") == DOMAIN)]
    return []


def _last_before(source: _Source, low: int) -> sa.Select[Any]:
    """The last kernel of each stream that starts before the window: what the first one in it follows."""
    start, place = _column("start"), [_column(name) for name in STREAM_COLUMNS if source.has(KERNEL, name)]
    # SQLite takes the row of a bare column beside max() from where the maximum is.
    last = sa.select(_column("rowid").label("row"), sa.func.max(start)).select_from(sa.table(KERNEL))
    return sa.select(last.where(start < low).group_by(*place).subquery().c.row)


def _column(name: str) -> sa.ColumnClause[Any]:
    return sa.column(name)


def _first_call(source: _Source, low: int) -> int:
    if not source.has(RUNTIME, "start", "correlationId"):
        return low
    statement = sa.select(sa.func.min(_column("start"))).select_from(sa.table(RUNTIME))
    found = source.file.connection.execute(statement.where(*_in_window(source, RUNTIME))).scalar()
    return found if isinstance(found, int) else low


# What the values become


def _define(source: _Source, clean: Clean) -> _Renamed:
    """Give the source's SQLite the functions that the statements use."""
    driver: Any = source.file.connection.connection.driver_connection
    launched: set[int] = set()
    driver.create_function("tracekit_launched", 1, lambda number: number in launched)
    if source.options.window:
        for table in CUT_BY_TIME:
            launched |= _distinct(source, table, "correlationId")
    used = _used(source)
    driver.create_function("tracekit_used", 1, lambda number: number in used)
    driver.create_function("tracekit_clean", 1, _on_text(clean))
    driver.create_function("tracekit_said", 1, _on_text(lambda text: clean(without_paths(text))))
    driver.create_function("tracekit_range", 3, _range_names(source))
    renamed = _kernel_names(source, max((number for number in used if number < 2**62), default=0))
    driver.create_function("tracekit_kernel", 1, lambda number: renamed.ids.get(number, number))
    return renamed


def _used(source: _Source) -> set[int]:
    """The ids of the texts that kept rows name."""
    used: set[int] = set()
    for table, kept in TABLES.items():
        if not (table == KERNEL and source.options.rename_kernels):
            for column in kept.ids:
                used |= _distinct(source, table, column)
    return used


def _distinct(source: _Source, table: str, column: str) -> set[int]:
    """The integers in a column of the kept rows; none where the column is not kept."""
    if not source.has(table, column):
        return set()
    statement = sa.select(_column(column)).distinct().select_from(sa.table(table))
    rows = source.file.connection.execute(statement.where(*_rows(source, table)))
    return {value for (value,) in rows if isinstance(value, int)}


def _on_text(change: Clean) -> Callable[[bytes | None], str | None]:
    return lambda raw: None if raw is None else change(raw.decode("utf-8", "replace"))


def _range_names(source: _Source) -> Callable[[object, bytes | None, object], str | None]:
    """Gives the name of a range or a domain a number; None where there is no name."""
    registered: dict[int, str] = {}
    if source.options.rename_ranges and "textId" in source.file.columns(NVTX):
        (ids,) = source.file.integers(NVTX, ["textId"])
        registered = source.file.strings(STRINGS, np.unique(ids)) if ids is not None else {}
    numbers: dict[tuple[str, object], int] = {}

    def rename(kind: object, raw: bytes | None, text_id: object) -> str | None:
        text = raw.decode("utf-8", "replace") if raw is not None else registered.get(text_id)  # type: ignore[call-overload]
        word = "domain" if kind == DOMAIN else "range"
        return None if text is None else f"{word} {numbers.setdefault((word, text), len(numbers) + 1)}"

    return rename


def _kernel_names(source: _Source, above: int) -> _Renamed:
    """Kernel names as numbers, under ids above all others; in the order of the old ids, as texts are read.

    Ids of one text become one; an id without a text stays.
    """
    column = next((name for name in NAME_COLUMNS if source.has(KERNEL, name)), "")
    if not source.options.rename_kernels or not column:
        return _Renamed({}, [])
    ids = sorted(_distinct(source, KERNEL, column))
    texts = source.file.strings(STRINGS, np.array(ids, dtype=np.int64))
    above = max([above, *(number for number in ids if number < 2**62)])
    numbers: dict[str, int] = {}
    for number in ids:
        if number in texts:
            numbers.setdefault(texts[number], above + 1 + len(numbers))
    new = [(number, f"kernel {number - above}") for number in numbers.values()]
    return _Renamed({old: numbers[text] for old, text in texts.items()}, new)


# Copying


def _copy_table(source: _Source, table: str, names: list[str], copy: sqlite3.Connection) -> None:
    values = [_value(source, table, name).label(name) for name in names]
    statement = sa.select(*values).select_from(sa.table(table)).where(*_rows(source, table))
    ordered = statement.order_by(sa.literal_column("rowid"))
    result = source.file.connection.execution_options(yield_per=BATCH_ROWS).execute(ordered)
    for number, batch in enumerate(result.partitions(BATCH_ROWS)):
        if number == 0:
            copy.execute(_definition(table, names))
        copy.executemany(_insertion(table, names), batch)


def _value(source: _Source, table: str, name: str) -> Column:
    """What becomes of a column: numbers stay, texts are cleaned, names may become numbers."""
    column: Column = sa.column(name)
    number = sa.case((sa.func.typeof(column).in_(["integer", "real"]), column))
    raw = sa.cast(column, sa.LargeBinary)
    if table == NVTX and name == "text" and source.options.rename_ranges:
        there = source.file.columns(NVTX)
        kind, own, text_id = (
            sa.column(c) if c in there else sa.null() for c in ("eventType", "text", "textId")
        )
        return sa.func.tracekit_range(kind, sa.cast(own, sa.LargeBinary), text_id)
    if table == KERNEL and name in NAME_COLUMNS and source.options.rename_kernels:
        return sa.func.tracekit_kernel(number)
    if name in TABLES[table].texts:
        return sa.func.tracekit_said(raw) if table == DIAGNOSTIC else sa.func.tracekit_clean(raw)
    return number


def _definition(table: str, names: list[str]) -> str:
    # The reader looks texts up by their id.
    types = {name: "TEXT" if name in TABLES[table].texts else "INTEGER" for name in names}
    types |= {"id": "INTEGER PRIMARY KEY"} if table == STRINGS else {}
    columns = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    return f"CREATE TABLE IF NOT EXISTS {table} ({columns})"


def _insertion(table: str, names: list[str]) -> str:
    return f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - constants
