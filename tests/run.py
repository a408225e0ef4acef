"""Runs the command as a user does, and says in which field two documents differ."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from tracekit.cli import main

Document = dict[str, Any]
# Warnings that say what tables and columns the file has, and what the profiler said itself.
OF_THE_RECORDING = ("no_calls", "column_missing", "recording")
GROUPINGS = ("range", "stream", "pair", "kernel", "graph", "none")


class Outcome(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Document:
        """The JSON document printed."""
        document: Document = json.loads(self.out)
        return document


def run(*arguments: object) -> Outcome:
    """Run `tracekit ARGUMENTS`."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, *(_text(stream) for stream in (out, err)))


def gaps(path: Path, by: str = "none", *options: object) -> Document:
    """The document of `tracekit gaps PATH --by BY --json OPTIONS`."""
    outcome = run("gaps", path, "--by", by, "--json", *options)
    assert outcome.code == 0, outcome.err
    return outcome.document


def row(document: Document, where: str = "launch", **key: object) -> Document:
    """The one row of this kind with these key columns."""
    rows = [r for r in document["rows"] if r["where"] == where and key.items() <= r["key"].items()]
    assert len(rows) == 1, f"{len(rows)} rows {where} {key} in {[r['key'] for r in document['rows']]}"
    found: Document = rows[0]
    return found


def warned(document: Document) -> dict[str, int]:
    """Counts by warning code."""
    counts: dict[str, int] = {}
    for warning in document["warnings"]:
        counts[warning["code"]] = counts.get(warning["code"], 0) + warning["count"]
    return counts


def differences(ours: Document, reference: Document) -> list[str]:
    """Where the document of `gaps` differs from the reference's, one line a field."""
    found = [
        *_differ("trace", ours["trace"], reference["trace"]),
        *_differ("devices", ours["devices"], reference["devices"]),
        *_differ("by", ours["by"], reference["by"]),
        *_differ("warnings", _without(warned(ours), *OF_THE_RECORDING), reference["warnings"]),
        *_differ("rows", *(_by_key(document["rows"]) for document in (ours, reference))),
    ]
    white = [r["white_ns"] for r in ours["rows"]]
    if white != sorted(white, reverse=True):
        found.append("rows are not sorted by white_ns")
    return found


def _by_key(rows: list[Document]) -> Document:
    keyed = {f"{r['where']} {json.dumps(r['key'])}": r for r in rows}
    assert len(keyed) == len(rows), "two rows with one key"
    return keyed


def _differ(place: str, ours: Any, theirs: Any) -> list[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        return [d for k in keys for d in _differ(f"{place}.{k}", ours.get(k, "-"), theirs.get(k, "-"))]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            d
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for d in _differ(f"{place}[{i}]", a, b)
        ]
    return [] if _same(ours, theirs) else [f"{place}: {ours!r}, reference {theirs!r}"]


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-6)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _without(document: Document, *names: str) -> Document:
    return {key: value for key, value in document.items() if key not in names}


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")
