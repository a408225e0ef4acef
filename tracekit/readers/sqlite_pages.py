"""Columns of a SQLite table, decoded from the file's pages with NumPy.

SQLite hands out rows one value at a time; a trace has millions of rows of small integers. This
module reads the table's b-tree pages itself (https://www.sqlite.org/fileformat2.html, sections
1.5, 1.6, 2.1) and turns whole pages into columns. It answers exactly as SQLite would, or it
raises `DeclinedError` and the caller asks SQLite: for overflowing rows, REAL or TEXT where an
integer is wanted, other encodings than UTF-8, a damaged page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NULL = np.iinfo(np.int64).min
"""Stands for SQL NULL in an integer column; as a time it is outside what a trace may hold."""

INTEGER, TEXT = "integer", "text"

_CHUNK_BYTES = 1 << 22  # of pages decoded at once: larger gains little more
_PADDING = 256  # the window on the last record's header or value may reach past the last page
_INTERIOR, _LEAF = 5, 13

# By serial type 0-9: bytes in the record, and the right shift that leaves them sign-extended.
_SIZE = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], dtype=np.intp)
_SHIFT = np.array([63, 56, 48, 40, 32, 16, 0, 0, 63, 63], dtype=np.int64)

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class DeclinedError(Exception):
    """This table needs SQLite itself; never shown to a user."""


@dataclass(frozen=True)
class TextColumn:
    """A text column as `codes` into its distinct `values`; -1 is NULL."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    descriptor: int
    page_bytes: int
    usable_bytes: int
    pages: int


@dataclass(frozen=True)
class _Cells:
    """The records of some leaf pages: where each one's column types and values start."""

    buffer: Bytes
    types: NDArray[np.intp]
    bodies: NDArray[np.intp]


Chunk = list["Ints | list[bytes | None]"]


def read_pages(descriptor: int, root_page: int, wanted: Sequence[tuple[int, str]]) -> list[Ints | TextColumn]:
    """Decode the wanted columns of the table whose b-tree starts at `root_page` (1-based).

    `wanted` holds (position in the table, INTEGER or TEXT), positions ascending. Rows come in
    rowid order. Raises `DeclinedError` when SQLite has to be asked. The caller makes sure that
    nobody writes to the file meanwhile.
    """
    file = _read_header(descriptor)
    groups = _chunks_of(_leaf_pages(file, root_page), file.page_bytes)
    columns: list[_Integers | _Texts] = [
        _Integers(len(groups)) if kind == INTEGER else _Texts() for _, kind in wanted
    ]
    with ThreadPoolExecutor(2) as pool:  # NumPy lets go of the interpreter lock
        for chunk in pool.map(lambda pages: _decode(file, pages, wanted), groups):
            for column, part in zip(columns, chunk, strict=True):
                column.append(part)
    return [column.finish() for column in columns]


def _read_header(descriptor: int) -> _File:
    head = os.pread(descriptor, 100, 0)
    if len(head) < 100 or int.from_bytes(head[56:60]) != 1:
        raise DeclinedError("not UTF-8")
    page_bytes = int.from_bytes(head[16:18]) or 1
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    if page_bytes < 512:
        raise DeclinedError("page size")
    pages = os.fstat(descriptor).st_size // page_bytes
    return _File(descriptor, page_bytes, page_bytes - head[20], pages)


def _read(file: _File, pages: NDArray[np.intp]) -> Bytes:
    """The given pages one after another, then padding."""
    if len(pages) and (pages.min() < 2 or pages.max() > file.pages):
        raise DeclinedError("page number")
    buffer = np.zeros(len(pages) * file.page_bytes + _PADDING, dtype=np.uint8)
    runs = np.split(np.arange(len(pages)), np.flatnonzero(np.diff(pages) != 1) + 1)
    view = buffer.data
    for run in runs:
        if len(run):
            low, high = int(run[0]) * file.page_bytes, (int(run[-1]) + 1) * file.page_bytes
            offset = (int(pages[run[0]]) - 1) * file.page_bytes
            if os.preadv(file.descriptor, [view[low:high]], offset) != high - low:
                raise DeclinedError("short read")
    return buffer


def _big_endian(buffer: Bytes, offsets: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    value = np.zeros(len(offsets), dtype=np.intp)
    for i in range(size):
        value = value << 8 | buffer[offsets + i]
    return value


def _leaf_pages(file: _File, root_page: int) -> NDArray[np.intp]:
    """Page numbers of the table's leaves in rowid order, found level by level."""
    level = np.array([root_page], dtype=np.intp)
    for _ in range(20):  # SQLite's own limit of a b-tree's depth
        kind = _read(file, level[:1])[0]
        if kind == _LEAF:
            return level
        if kind != _INTERIOR:
            raise DeclinedError("not a table b-tree")
        groups = _chunks_of(level, file.page_bytes)
        level = np.concatenate([_children(file, _read(file, pages)) for pages in groups])
        if len(level) > file.pages:
            raise DeclinedError("b-tree larger than the file")
    raise DeclinedError("b-tree too deep")


def _children(file: _File, buffer: Bytes) -> NDArray[np.intp]:
    bases = np.arange(len(buffer) // file.page_bytes, dtype=np.intp) * file.page_bytes
    cells, owner = _cell_offsets(file, buffer, bases, _INTERIOR)
    children = _big_endian(buffer, cells, 4)
    last = _big_endian(buffer, bases + 8, 4)
    return np.insert(children, np.cumsum(np.bincount(owner, minlength=len(bases))), last)


def _cell_offsets(
    file: _File, buffer: Bytes, bases: NDArray[np.intp], kind: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each cell of the pages starts in the buffer, and which page it belongs to."""
    if (buffer[bases] != kind).any():
        raise DeclinedError("unexpected page type")
    header = 12 if kind == _INTERIOR else 8
    counts = _big_endian(buffer, bases + 3, 2)
    if (counts * 2 + header > file.usable_bytes).any():
        raise DeclinedError("cell count")
    owner = np.repeat(np.arange(len(bases), dtype=np.intp), counts)
    within = np.arange(len(owner), dtype=np.intp) - np.repeat(np.cumsum(counts) - counts, counts)
    pointers = _big_endian(buffer, bases[owner] + header + 2 * within, 2)
    if (pointers >= file.usable_bytes).any() or (pointers < header + 2 * counts[owner]).any():
        raise DeclinedError("cell pointer")
    return bases[owner] + pointers, owner


def _chunks_of(pages: NDArray[np.intp], page_bytes: int) -> list[NDArray[np.intp]]:
    size = max(1, _CHUNK_BYTES // page_bytes)
    return [pages[i : i + size] for i in range(0, len(pages), size)]


def _decode(file: _File, pages: NDArray[np.intp], wanted: Sequence[tuple[int, str]]) -> Chunk:
    cells = _read_cells(file, _read(file, pages))
    body, columns, kinds = cells.bodies, [], dict(wanted)
    for position, kind in enumerate(_column_kinds(cells, wanted[-1][0] + 1)):
        if position in kinds:
            read = _integers if kinds[position] == INTEGER else _texts
            columns.append(read(cells.buffer, kind, body))
        body = body + _sizes(kind)
    if len(body) and body.max() > len(cells.buffer) - _PADDING:
        raise DeclinedError("record longer than its page")
    return columns


def _column_kinds(cells: _Cells, count: int) -> Iterator[NDArray[np.intp]]:
    """The serial types of the first `count` columns, one array a column.

    A column whose rows all have one type, as most do, comes as an array of one.
    """
    windows = np.ndarray(
        (len(cells.buffer) - count, count), dtype=np.uint8, buffer=cells.buffer, strides=(1, 1)
    )
    matrix = np.ascontiguousarray(windows[cells.types].T)
    if len(cells.types) and (cells.types + count > cells.bodies).any():
        # A record written before ALTER TABLE ADD COLUMN is shorter than the table.
        raise DeclinedError("a row with fewer columns than the table")
    if matrix.max(initial=0) < 128:
        for row in matrix:
            yield (row[:1] if row.min(initial=255) == row.max(initial=0) else row).astype(np.intp)
        return
    where = cells.types
    for _ in range(count):
        if (where >= cells.bodies).any():
            raise DeclinedError("a row with fewer columns than the table")
        kind, where = _short_varint(cells.buffer, where)
        yield kind


def _read_cells(file: _File, buffer: Bytes) -> _Cells:
    """Skip each cell's payload size and rowid; find its record header and body."""
    bases = np.arange(len(buffer) // file.page_bytes, dtype=np.intp) * file.page_bytes
    cells, owner = _cell_offsets(file, buffer, bases, _LEAF)
    payload, at = _short_varint(buffer, cells)
    at = _skip_varint(buffer, at)
    if (payload > file.usable_bytes - 35).any():
        raise DeclinedError("overflow pages")
    if (at + payload > bases[owner] + file.usable_bytes).any():
        raise DeclinedError("cell longer than its page")
    header = buffer[at]
    if (header >= 128).any():
        raise DeclinedError("more than about 120 columns")
    return _Cells(buffer, at + 1, at + header)


def _short_varint(buffer: Bytes, at: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """A varint of one or two bytes (up to 16,383) and the offset after it."""
    first = buffer[at].astype(np.intp)
    if first.max(initial=0) < 128:
        return first, at + 1
    long = first >= 128
    second = buffer[at + 1].astype(np.intp)
    if (long & (second >= 128)).any():
        raise DeclinedError("a value over 16 kB")
    return np.where(long, (first & 127) << 7 | second, first), at + 1 + long


def _skip_varint(buffer: Bytes, at: NDArray[np.intp]) -> NDArray[np.intp]:
    more = buffer[at] >= 128
    for _ in range(8):
        if not more.any():
            return at + 1
        at = at + more
        more &= buffer[at] >= 128
    raise DeclinedError("a rowid beyond 2^56")


def _sizes(kind: NDArray[np.intp]) -> NDArray[np.intp]:
    if kind.max(initial=0) < 12:
        return _SIZE[kind]
    return np.where(kind >= 12, (kind - 12) // 2, _SIZE[np.minimum(kind, 11)])


def _integers(buffer: Bytes, kind: NDArray[np.intp], body: NDArray[np.intp]) -> Ints:
    if kind.max(initial=0) > 9 or (kind == 7).any():
        raise DeclinedError("not an integer")
    if len(body) and body.max() > len(buffer) - _PADDING:
        raise DeclinedError("record longer than its page")
    windows = np.ndarray((len(buffer) - 7,), dtype="<i8", buffer=buffer, strides=(1,))
    value: Ints = windows[body].byteswap().astype(np.int64, copy=False)
    value >>= _SHIFT[kind]
    inline = _SIZE[kind] == 0
    if inline.any():  # 0 is NULL, 8 and 9 are the constants 0 and 1
        kind, inline = np.broadcast_to(kind, value.shape), np.broadcast_to(inline, value.shape)
        value[inline] = np.array([NULL, 0, 1])[np.maximum(kind[inline] - 7, 0)]
    return value


def _texts(buffer: Bytes, kind: NDArray[np.intp], body: NDArray[np.intp]) -> list[bytes | None]:
    if ((kind != 0) & ((kind < 13) | (kind % 2 == 0))).any():
        raise DeclinedError("not text")
    view = buffer.data
    kind = np.broadcast_to(kind, body.shape)
    ends = body + _sizes(kind)
    if len(ends) and ends.max() > len(buffer) - _PADDING:
        raise DeclinedError("record longer than its page")
    none = (kind == 0).tolist()
    spans = zip(body.tolist(), ends.tolist(), none, strict=True)
    return [None if null else bytes(view[start:end]) for start, end, null in spans]


class _Integers:
    """Grows one array in place: kept apart, the parts would hold the memory twice.

    A column that holds one value throughout, as process, device and context do, stays that one
    value: an array without strides.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.constant: int | None = None
        self.values: Ints = np.empty(0, dtype=np.int64)
        self.used = 0

    def append(self, part: Any) -> None:
        if not len(part):
            return
        if not len(self.values) and self._is_constant(part):
            self.used += len(part)
            return
        end = self.used + len(part)
        if end > len(self.values):
            self._grow(max(end, len(part) * (self.parts + 1), 2 * self.used))
        self.values[self.used : end] = part
        self.used = end

    def finish(self) -> Ints:
        if self.used and not len(self.values):
            return np.broadcast_to(np.int64(self.constant), (self.used,))  # type: ignore[arg-type]
        return self.values[: self.used]

    def _is_constant(self, part: Ints) -> bool:
        low = int(part.min())
        if self.constant is None:
            self.constant = low
        return self.constant == low == int(part.max())

    def _grow(self, size: int) -> None:
        # The first part tells how long a part is; memory that is never touched costs nothing.
        grown = np.empty(size, dtype=np.int64)
        grown[: self.used] = self.finish()
        self.values = grown


class _Texts:
    """Gives texts codes as they come."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []

    def append(self, part: Any) -> None:
        self.values += part

    def finish(self) -> TextColumn:
        return encode_texts(self.values)


def encode_texts(values: Sequence[bytes | str | None]) -> TextColumn:
    """Give each distinct text a code in order of first appearance; bad UTF-8 is replaced."""
    known: dict[bytes | str, int] = {}
    codes = [-1 if value is None else known.setdefault(value, len(known)) for value in values]
    texts = (v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in known)
    return TextColumn(np.array(codes, dtype=np.int32), tuple(texts))
