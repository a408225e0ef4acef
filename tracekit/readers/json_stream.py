"""A long list inside a JSON file, read a piece at a time: the file is never in memory as a whole.

msgspec decodes a piece at 400 MB/s but wants it whole; so the file is cut where an element seems to end,
`}` before a comma, and the decoder says whether that was right: what lies before a wrong cut is not valid.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from tracekit.errors import TraceError

_CHUNK_BYTES = 4 << 20
_HEAD_BYTES = 64 << 20  # the list must begin before
_CUTS = 8  # places tried before more is read
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE = re.compile(r"\(byte (\d+)\)")

T = TypeVar("T")
Fields = dict[str, msgspec.Raw]


@dataclass
class _Input:
    """What was read and not yet used, and where in the unpacked file it begins."""

    path: Path
    file: BinaryIO | gzip.GzipFile
    data: bytes = b""
    offset: int = 0
    ended: bool = False

    def more(self) -> None:
        """Read as much again as there is, at least a chunk: long elements cost no more than twice."""
        try:
            found = self.file.read(max(_CHUNK_BYTES, len(self.data)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"the gzip data is cut off or damaged ({error})", len(self.data)) from error
        except OSError as error:
            raise TraceError(f"{self.path}: {(error.strerror or 'cannot be read').lower()}") from error
        self.data += found
        self.ended = not found

    def drop(self, count: int) -> None:
        self.data, self.offset = self.data[count:], self.offset + count

    def error(self, what: str, at: int) -> TraceError:
        """What is wrong at this place of the data."""
        place = f"byte {self.offset + at:,} of the JSON"
        return TraceError(f"{self.path}: {what}, near {place}; copy the trace again or record it again")


def read_list(path: Path, key: str, kind: type[T], fields: Fields) -> Iterator[list[T]]:
    """The elements of the top-level list `key` as `kind`, some thousand at a time, gzip or not.

    The top-level fields beside the list are put into `fields`: those before it with the first batch,
    those after it with the last. Raises `TraceError` with the position for what is no JSON or ends early.
    """
    with _opened(path) as source:
        _read_head(source, key, fields)
        decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        done = False
        while not done:
            batch, done = _next_batch(source, decoder)
            yield batch
        _read_tail(source, key, fields)


@contextmanager
def _opened(path: Path) -> Iterator[_Input]:
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            yield _Input(path, gzip.GzipFile(fileobj=plain) if packed else plain)
    except OSError as error:
        raise TraceError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error


def _read_head(source: _Input, key: str, fields: Fields) -> None:
    """Read up to the first element of the list."""
    begin = re.compile(rb'"%s"\s*:\s*\[' % key.encode())
    while not source.ended and len(source.data) < _HEAD_BYTES:
        source.more()
        if source.offset == 0 and source.data.startswith(b"\xef\xbb\xbf"):  # a byte order mark
            source.drop(3)
        _require_json(source)
        for found in islice(begin.finditer(source.data), _CUTS):
            # Inside a nested object or a text the part before it is not valid.
            head = _decoded(source.data[: found.end()] + b"]}")
            if head is not None:
                fields.update(head)
                source.drop(found.end())
                return
    if source.ended:
        _check_whole(source)
    raise TraceError(f"{source.path}: JSON without a list {key!r}: not a PyTorch (Chrome) trace")


def _require_json(source: _Input) -> None:
    start = source.data.lstrip()[:1]
    if start and start not in (b"{", b"["):
        raise TraceError(f"{source.path}: compressed, and what is inside is no JSON; unpack it: gunzip")


def _decoded(document: bytes) -> Fields | None:
    try:
        return msgspec.json.decode(document, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return None


def _check_whole(source: _Input) -> None:
    """Raise for a file that is no JSON at all."""
    try:
        msgspec.json.decode(source.data, type=msgspec.Raw)
    except RecursionError as error:
        raise source.error("nested too deeply", 0) from error
    except msgspec.DecodeError as error:
        raise _broken(source, source.data, error, 0) from error


def _next_batch(source: _Input, decoder: msgspec.json.Decoder[list[T]]) -> tuple[list[T], bool]:
    """The next elements, and whether the list ended with them."""
    while True:
        for cut in _cuts(source):
            document = b"[" + source.data[:cut] + b"]"
            try:
                batch = decoder.decode(document)
            except RecursionError as error:
                raise source.error("nested too deeply", 0) from error
            except msgspec.DecodeError as error:
                if "trailing characters" in str(error):
                    end = document.rindex(b"]", 0, _position(error) - 1) + 1
                    return _last_batch(source, decoder, document[:end])
                if not _is_wrong_cut(error, len(document)):
                    raise _broken(source, document, error, -1) from error
            else:
                if not source.ended:
                    source.drop(source.data.index(b",", cut) + 1)
                    return batch, False
        if source.ended:
            raise source.error("the JSON is cut off", len(source.data))
        source.more()


def _cuts(source: _Input) -> list[int]:
    """Places where an element may end, the last first; at the end of the file all that is left."""
    if source.ended:
        return [len(source.data)]
    found: list[int] = []
    at = len(source.data)
    for _ in range(100 * _CUTS):
        at = source.data.rfind(b"}", 0, at)
        if at < 0 or len(found) == _CUTS:
            break
        if source.data[at + 1 : at + 64].lstrip()[:1] == b",":
            found.append(at + 1)
    return found


def _is_wrong_cut(error: msgspec.DecodeError, length: int) -> bool:
    """Whether only the end was wrong, where the bracket was added."""
    return "truncated" in str(error) or _position(error) >= length - 1


def _last_batch(
    source: _Input, decoder: msgspec.json.Decoder[list[T]], document: bytes
) -> tuple[list[T], bool]:
    source.drop(len(document) - 1)
    return decoder.decode(document), True


def _read_tail(source: _Input, key: str, fields: Fields) -> None:
    while not source.ended:
        source.more()
    begin = b'{"%s":[]' % key.encode()
    try:
        fields.update(msgspec.json.decode(begin + source.data, type=Fields))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _broken(source, begin + source.data, error, -len(begin)) from error


def _broken(source: _Input, document: bytes, error: Exception, shift: int) -> TraceError:
    """The error in the words of a user; `shift` is from a place of the document to one of the data."""
    if isinstance(error, msgspec.ValidationError):
        return source.error(f"an event of the trace is odd ({error})", 0)
    at = _position(error)
    if at >= 0:
        reason = str(error).partition(": ")[2].partition(" (byte")[0]
        return source.error(f"this is not valid JSON ({reason})", max(0, at + shift))
    try:
        document.decode()
    except UnicodeDecodeError as bad:
        return source.error("this is not valid JSON (a byte that is not UTF-8)", max(0, bad.start + shift))
    return source.error("the JSON is cut off", len(source.data))


def _position(error: Exception) -> int:
    found = _BYTE.search(str(error))
    return int(found[1]) if found else -1
