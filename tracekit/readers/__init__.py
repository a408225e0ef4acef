"""Readers: one file a trace format. `read` looks at the content, never at the file's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracekit.errors import TraceError
from tracekit.trace import Trace

SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")


def read(
    path: str | Path, *, shapes: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Trace:
    """Read a trace file under any name: an nsys SQLite export, or a Chrome trace of PyTorch's profiler.

    `shapes` also reads each kernel's grid and block. Raises `TraceError` that says what the file is
    and what to do.
    """
    path = Path(path)
    head = read_head(path)
    if head[:16] == SQLITE_MAGIC:
        from tracekit.readers import nsys_sqlite

        return nsys_sqlite.read(path, shapes=shapes, progress=progress)
    if _may_be_json(head):
        from tracekit.readers import kineto_json

        return kineto_json.read(path, shapes=shapes, progress=progress)
    raise TraceError(f"{path}: {_what_it_is(path, head)}")


def is_report(path: Path) -> bool:
    """Whether this is an nsys report that has to be exported before it can be read."""
    return path.suffix in REPORT_SUFFIXES and read_head(path)[:16] != SQLITE_MAGIC


def read_head(path: Path) -> bytes:
    """The first bytes of the file. Raises `TraceError` where there is no readable file."""
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError as error:
        raise TraceError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error


def _what_it_is(path: Path, head: bytes) -> str:
    if not head:
        return "the file is empty; export the report again"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the trace itself; fetch it with: git lfs pull"
    if path.suffix in REPORT_SUFFIXES:
        return f"an nsys report; export it first: nsys export --type sqlite {path.name}"
    return (
        "not a trace that tracekit knows; it reads nsys SQLite exports (nsys export --type sqlite) and "
        "Chrome traces of PyTorch's profiler"
    )


def _may_be_json(head: bytes) -> bool:
    """Whether this is gzip or begins like JSON, after a byte order mark or not."""
    return head[:2] == b"\x1f\x8b" or head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
