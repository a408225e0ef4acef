"""Columns decoded from the pages equal what SQLite itself says, or are left to SQLite."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.errors import TraceError
from tracekit.readers import sqlite_file
from tracekit.readers.sqlite_file import SqliteFile, open_sqlite
from tracekit.readers.sqlite_pages import INTEGER, NULL, TEXT, DeclinedError, TextColumn, read_pages

fuzzed = settings(max_examples=200, deadline=10_000, suppress_health_check=[HealthCheck.too_slow])

WIDTHS = [
    0,
    1,
    -1,
    127,
    128,
    -129,
    2**15,
    2**23 - 1,
    -(2**23),
    2**31,
    2**40,
    -(2**47),
    2**62,
    2**63 - 1,
    -(2**63),
]
integers = st.one_of(st.sampled_from(WIDTHS), st.integers(-(2**63), 2**63 - 1), st.sampled_from([None, 0, 1]))
texts = st.one_of(st.none(), st.sampled_from(["", "a", "é" * 40, "x" * 130, "y" * 5000]), st.text(max_size=5))
others = st.one_of(st.floats(allow_nan=False), st.binary(max_size=20), st.none(), texts, integers)
CELLS = {INTEGER: integers, TEXT: texts, "other": others}
PAGES = [512, 1024, 4096, 65536]


@dataclass(frozen=True)
class Plan:
    """A table to make: its columns by kind, rows, and what is done to it after."""

    kinds: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    rowids: list[int]
    copies: int  # of all rows, for tables of many pages
    page_bytes: int
    deleted: int  # one row in so many; 0 for none
    added: bool  # a column added later, so that old rows are shorter
    suffix: str  # of the declaration


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kinds = tuple(draw(st.lists(st.sampled_from([INTEGER, INTEGER, TEXT, "other"]), min_size=1, max_size=6)))
    rows = draw(st.lists(st.tuples(*(CELLS[kind] for kind in kinds)), max_size=20))
    rowid = st.one_of(st.integers(1, 300), st.sampled_from([-(2**63), -1, 0, 2**32, 2**56, 2**60]))
    return Plan(
        kinds,
        rows,
        draw(st.lists(rowid, min_size=len(rows), max_size=len(rows), unique=True)),
        draw(st.sampled_from([0, 0, 5, 60])),
        draw(st.sampled_from(PAGES)),
        draw(st.sampled_from([0, 0, 2, 3])),
        draw(st.booleans()),
        draw(st.sampled_from(["", "", "", "key", "without rowid"])),
    )


def make(path: Path, plan: Plan) -> list[str]:
    """Write the table `t`; returns its columns."""
    path.unlink(missing_ok=True)
    columns = [f"c{i}" for i in range(len(plan.kinds))]
    # No declared type: SQLite keeps each cell as it comes.
    declared = [*columns, "id INTEGER PRIMARY KEY"] if plan.suffix else columns
    listed, marks = ",".join([*columns, "rowid"]), ",".join("?" * (len(columns) + 1))
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size={plan.page_bytes}")
        db.execute("PRAGMA synchronous=OFF")
        tail = " WITHOUT ROWID" if plan.suffix == "without rowid" else ""
        db.execute(f"CREATE TABLE t ({','.join(declared)}){tail}")
        if tail:
            listed = listed.replace("rowid", "id")
        insert = f"INSERT OR IGNORE INTO t ({listed}) VALUES ({marks})"
        db.executemany(insert, [(*row, i) for row, i in zip(plan.rows, plan.rowids, strict=True)])
        more = [row for _ in range(plan.copies) for row in plan.rows]
        db.executemany(insert, [(*row, 1000 + i) for i, row in enumerate(more)])
        if plan.deleted:
            db.execute(f"DELETE FROM t WHERE {'id' if tail else 'rowid'} % {plan.deleted} = 0")
        if plan.added:
            db.execute("ALTER TABLE t ADD COLUMN late INTEGER DEFAULT 5")
            db.execute(f"INSERT OR IGNORE INTO t ({'id' if tail else 'rowid'}, late) VALUES (5000, 6)")
        db.commit()
    return [*columns, *(["id"] if plan.suffix else []), *(["late"] if plan.added else [])]


def asked(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """The columns as SQLite gives them, in order of the rows."""
    with closing(sqlite3.connect(path)) as db:
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        rows = db.execute(f"SELECT {','.join(columns)} FROM t").fetchall()
    return {column: [row[i] for row in rows] for i, column in enumerate(columns)}


def as_integers(cells: list[Any]) -> list[int]:
    """What an integer column makes of cells: NULL for what is no whole number."""
    return [
        int(c) if isinstance(c, int) or (isinstance(c, float) and c.is_integer() and abs(c) < 2**62) else NULL
        for c in cells
    ]


def as_texts(cells: list[Any]) -> list[str | None]:
    return [
        c.decode("utf-8", "replace") if isinstance(c, bytes) else None if c is None else str(c) for c in cells
    ]


def spelled(column: object) -> list[Any]:
    if isinstance(column, TextColumn):
        return [None if code < 0 else column.values[code] for code in column.codes.tolist()]
    assert isinstance(column, np.ndarray)
    values: list[Any] = column.tolist()
    return values


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages") / "t.sqlite"


@fuzzed
@given(plan=plans(), data=st.data())
def test_columns_equal_what_sqlite_says(path: Path, plan: Plan, data: st.DataObject) -> None:
    columns = make(path, plan)
    kinds = [*plan.kinds, *([INTEGER] * (len(columns) - len(plan.kinds)))]
    usual = [(c, k) for c, k in zip(columns, kinds, strict=True) if k != "other"]
    chosen = data.draw(st.lists(st.sampled_from(usual), unique=True)) if usual else []
    chosen += [("missing", INTEGER)]
    with open_sqlite(path) as file:
        found = file.read("t", chosen)
    answers = asked(path, columns)
    for (name, kind), column in zip(chosen, found, strict=True):
        if name == "missing":
            assert column is None
        else:
            assert spelled(column) == (as_integers if kind == INTEGER else as_texts)(answers[name])


@fuzzed
@given(plan=plans(), kind=st.sampled_from([INTEGER, TEXT]))
def test_a_column_of_anything_equals_what_sqlite_says(path: Path, plan: Plan, kind: str) -> None:
    columns = make(path, plan)
    with open_sqlite(path) as file:
        found = file.read("t", [(columns[0], kind)])[0]
    answer = asked(path, columns)[columns[0]]
    assert spelled(found) == (as_integers if kind == INTEGER else as_texts)(answer)


def test_plain_tables_are_decoded_not_left_to_sqlite(path: Path) -> None:
    rows = [(i * 100, None if i % 3 else 1, "name", 2**40) for i in range(5000)]
    make(path, Plan((INTEGER, INTEGER, "other", INTEGER), rows, list(range(1, 5001)), 0, 512, 0, False, ""))
    with open_sqlite(path) as file:
        wanted = [(0, INTEGER), (1, INTEGER), (2, TEXT), (3, INTEGER)]
        found = [spelled(column) for column in read_pages(file.descriptor, file.root_pages["t"], wanted)]
    a, b, c, d = zip(*rows, strict=True)
    assert found == [list(a), as_integers(list(b)), list(c), list(d)]


@pytest.mark.parametrize(
    "declaration",
    [
        "start INTEGER, end INTEGER GENERATED ALWAYS AS (start + 5) VIRTUAL, late INTEGER",
        "start INTEGER, end INTEGER GENERATED ALWAYS AS (start + 5) STORED, late INTEGER",
    ],
)
def test_computed_columns_are_left_to_sqlite(path: Path, declaration: str) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE t ({declaration})")
        db.execute("INSERT INTO t (start, late) VALUES (1, 2)")
        db.commit()
    with open_sqlite(path) as file:
        found = file.integers("t", ["start", "end", "late"])
    assert [None if c is None else c.tolist() for c in found] == [[1], [6], [2]]


def test_utf16_databases_are_left_to_sqlite(path: Path) -> None:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA encoding='UTF-16le'")
        db.execute("CREATE TABLE t (a, b)")
        db.execute("INSERT INTO t VALUES (1, 'é')")
        db.commit()
    with open_sqlite(path) as file:
        assert [spelled(column) for column in file.read("t", [("a", INTEGER), ("b", TEXT)])] == [[1], ["é"]]


def damaged(content: bytes, seed: int) -> bytes:
    """The content with a few bytes changed, more of them near the starts of pages."""
    dice, changed = random.Random(seed), bytearray(content)
    for _ in range(dice.choice([1, 1, 3, 20])):
        at = dice.randrange(len(changed))
        at -= at % 512 - dice.randrange(16) if dice.random() < 0.5 else 0
        changed[at] = dice.choice([0, 1, 5, 13, 127, 128, 255, dice.randrange(256)])
    return bytes(changed)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("healthy") / "t.sqlite"
    rows = [(i, None, f"name {i % 7}", i * 2**33) for i in range(400)]
    make(path, Plan((INTEGER, INTEGER, TEXT, INTEGER), rows, list(range(1, 401)), 0, 512, 3, False, ""))
    return path


@settings(max_examples=500, deadline=10_000)
@given(seed=st.integers(0, 2**32))
def test_damaged_pages_raise_only_what_is_caught(path: Path, healthy: Path, seed: int) -> None:
    path.write_bytes(damaged(healthy.read_bytes(), seed))
    wanted = [("c0", INTEGER), ("c1", INTEGER), ("c2", TEXT), ("c3", INTEGER)]
    try:
        with open_sqlite(path) as file:
            file.read("t", wanted)
            for root in range(1, healthy.stat().st_size // 512 + 1):
                decode(file, root)
    except TraceError:
        pass


def decode(file: SqliteFile, root: int) -> None:
    with suppress(DeclinedError):
        read_pages(file.descriptor, root, [(0, INTEGER), (2, TEXT)])


@settings(max_examples=100, deadline=10_000)
@given(seed=st.integers(0, 2**32))
def test_damaged_pages_never_give_another_answer_than_sqlite(path: Path, healthy: Path, seed: int) -> None:
    path.write_bytes(damaged(healthy.read_bytes(), seed))
    wanted = [("c0", INTEGER), ("c1", INTEGER), ("c3", INTEGER)]
    assert_agree(outcome(path, wanted, file_read), outcome(path, wanted, sqlite_read))


Read = Callable[[SqliteFile, list[tuple[str, str]]], list[Any]]


def file_read(file: SqliteFile, wanted: list[tuple[str, str]]) -> list[Any]:
    return file.read("t", wanted)


def sqlite_read(file: SqliteFile, wanted: list[tuple[str, str]]) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_file, "read_pages", declined)
        return file.read("t", wanted)


def declined(*_: object) -> None:
    raise DeclinedError


def outcome(path: Path, wanted: list[tuple[str, str]], read: Read) -> list[list[Any]] | None:
    try:
        with open_sqlite(path) as file:
            return [spelled(column) for column in read(file, wanted) if column is not None]
    except TraceError:
        return None


def assert_agree(ours: list[list[Any]] | None, theirs: list[list[Any]] | None) -> None:
    """Where SQLite sees damage, an answer from the undamaged part is not wrong; another one is."""
    if ours is not None and theirs is not None:
        assert ours == theirs
