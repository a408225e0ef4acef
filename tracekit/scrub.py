"""A copy of an nsys export that can be mailed, and the proof that it is one.

The copy is a new file. Only what `readers.nsys_schema` lists is written to it, so that nothing has to be
deleted from it; texts that are kept, names of kernels and ranges, lose what looks like a path and what the
export's own environment, user and host are called. Then the copy is read like any trace and compared.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracekit.analysis.gaps import GROUPINGS, GapReport, GapRow, Selection, Window, gaps
from tracekit.errors import TraceError, TracekitError, UsageError
from tracekit.readers import SQLITE_MAGIC, nsys_copy, read, read_head
from tracekit.readers.nsys_schema import PrivateTexts, private_texts
from tracekit.readers.sqlite_file import open_sqlite
from tracekit.trace import Recording, Trace

ROOTS = (
    "root|usr|opt|tmp|var|mnt|media|srv|etc|dev|proc|sys|run|lib|lib64|bin|sbin|data|datasets|scratch|work"
    "|workspace|gpfs|lustre|nfs|net|project|projects|proj|global|content|kaggle|storage|fsx|efs|private|Volumes"
    "|Library|code|app|models"
)
_PART = r"[^\s'\",;:()<>|\\/]+"
_FILE = r"pyc?|so|sh|cuh?|cpp|hpp|pth?|bin|safetensors|json|ya?ml|txt|log|sqlite|nsys-rep|exe|dll"
NOBODY = {"root", "user", "ubuntu", "nobody", "admin", "nvidia", "docker", "localhost", "unknown"}
LEAST_NAME, LEAST_VALUE = 3, 6  # shorter ones are part of too many words
BLOCK_BYTES, OVERLAP_BYTES = 16 << 20, 4096
EDGES = ("kernels", "opaque_replays", "tick_ns", "warnings")  # of a report: what counts the whole file


@dataclass(frozen=True)
class Wanted:
    """What the copy is to be: names replaced by numbers, only what tracekit reads, only a window."""

    rename_kernels: bool = False
    rename_ranges: bool = False
    slim: bool = False
    window: Window | None = None


@dataclass(frozen=True)
class Scrubbed:
    """What became of it: sizes, and how many kept texts held something private."""

    source_bytes: int
    copy_bytes: int
    kernels: int
    ranges: int
    replaced: int


@dataclass(frozen=True)
class Cleaner:
    """Replaces the private parts of a text by numbers, the same part always by the same."""

    path: re.Pattern[str]
    words: re.Pattern[str] | None
    raw_path: re.Pattern[bytes]  # what cannot be chance in the bytes of a file
    raw_words: tuple[str, ...]
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def clean(self, text: str) -> str:
        """The text with `<path 1>`, `<private 2>` in place of what is private."""
        if text not in self.known:
            cleaned = self.path.sub(lambda found: self._number("path", found[0]), text)
            if self.words:
                cleaned = self.words.sub(lambda found: self._number("private", found[0]), cleaned)
            self.known[text] = cleaned
        return self.known[text]

    def is_private(self, text: str) -> bool:
        """Whether something private is in it, which a copy has none of."""
        return bool(self.path.search(text) or (self.words and self.words.search(text)))

    def _number(self, kind: str, part: str) -> str:
        return f"<{kind} {self.numbers.setdefault((kind, part), len(self.numbers) + 1)}>"


def _whole_word(words: list[str]) -> re.Pattern[str]:
    """One of the words, no letter or digit beside it."""
    return re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, words))})(?![^\W_])")


def scrub(source: Path, target: Path, wanted: Wanted, *, force: bool = False) -> Scrubbed:
    """Write a copy of the export `source` without what says who recorded it and where.

    What `gaps` refuses is refused with the same words. With a window the copy holds what overlaps it, whole
    graph replays, and their calls and ranges: `gaps --window` of both files is the same but for the counts
    of the whole file (`EDGES`). Raises `TracekitError`, and leaves no file, when the copy fails its check.
    """
    _require_free(source, target, force)
    if read_head(source)[:16] != SQLITE_MAGIC:
        read(source)  # says what it is, unless it is another kind of trace
        raise TraceError(f"{source}: only nsys SQLite exports can be scrubbed")
    trace = read(source)
    window = _closed(trace, wanted.window)
    before = _reports(trace, window)
    with open_sqlite(source) as file, _beside(target) as copy:
        cleaner = make_cleaner(private_texts(file), _kept_words(trace.recording))
        options = nsys_copy.Options(wanted.rename_kernels, wanted.rename_ranges, wanted.slim, window)
        nsys_copy.write(file, copy, options, cleaner.clean)
        replaced = sum(text != cleaned for text, cleaned in cleaner.known.items())
        copied = read(copy)
        _check_answers(source, before, _reports(copied, window), wanted, cleaner)
        _check_texts(source, copy, cleaner)
        copy.replace(target)
    sizes = (source.stat().st_size, target.stat().st_size)
    return Scrubbed(*sizes, len(copied.kernels), len(copied.ranges), replaced)


def make_cleaner(private: PrivateTexts, kept: str) -> Cleaner:
    """A cleaner for these private texts; a word that is part of `kept` (GPU, version) is no secret."""
    everything = "\n".join((*private.who, *private.variables, *private.other))
    roots = [*ROOTS.split("|"), *re.findall(r"(?<![\w/.-])/(\w[\w.+-]*)/", everything)]
    long_roots = "|".join(re.escape(root) for root in roots if len(root) > 2)
    words = _private_words(private, kept)
    return Cleaner(
        path=_path_pattern("|".join(map(re.escape, roots))),
        words=_whole_word(words) if words else None,
        raw_path=re.compile(rf"/(?:home|Users)/\w|(?<![\w/.-])/(?:{long_roots})/\w".encode()),
        raw_words=tuple(word for word in words if len(word) >= LEAST_VALUE),
    )


def _path_pattern(roots: str) -> re.Pattern[str]:
    """Absolute paths: below a usual folder or one seen, to a file, below a home, on a drive or share."""
    rest = rf"(?:[/\\]{_PART})*[/\\]?"
    return re.compile(
        rf"/(?:home|Users)/{_PART}{rest}"
        rf"|(?<![\w/.-])/(?:{roots})/{_PART}{rest}"
        rf"|(?<![\w/.-])(?:/{_PART})+/{_PART}\.(?:{_FILE})(?![\w.])"
        rf"|(?<!\w)~\w*/{_PART}{rest}|(?<!\w)[A-Za-z]:\\{_PART}{rest}|\\\\{_PART}\\{_PART}{rest}"
    )


def _private_words(private: PrivateTexts, kept: str) -> list[str]:
    """Names of user and host, values of variables and their parts, the longest first."""
    names = {name for text in private.who for name in (text, text.partition(".")[0])}
    values = {part for text in private.variables for part in (text, *re.split(r"[:;,]", text))}
    words = {name for name in names if len(name) >= LEAST_NAME}
    words |= {v for v in values if len(v) >= LEAST_VALUE and not (v.isdigit() and len(v) < 8)}
    return sorted((w for w in words if w not in kept and w.lower() not in NOBODY), key=len, reverse=True)


def _kept_words(recording: Recording) -> str:
    return " ".join(
        [str(recording.nsys_version), str(recording.schema_version), *(g.name for g in recording.gpus)]
    )


def describe(name: str, made: Scrubbed, wanted: Wanted) -> str:
    """Size, content, what was checked, and what a reader of the copy should know."""
    said = [
        f"{name}: {made.copy_bytes / 1e6:.2f} MB of {made.source_bytes / 1e6:.2f} MB; "
        f"{made.kernels:,} kernels, {made.ranges:,} ranges.",
        "Checked: no path, no string of the environment, no host or user name is in the file, and "
        f"`tracekit gaps{' --window' if wanted.window else ''}` gives the same for both.",
    ]
    if made.replaced:
        said.append(f"{made.replaced:,} names held a path or a private word, which is a number now.")
    if wanted.window:
        said.append(
            "Counts of the whole file (kernels, opaque replays, clock tick, warnings) are those of the copy."
        )
    return "\n".join(said)


# Where the copy goes


def _require_free(source: Path, target: Path, force: bool) -> None:
    beside = {source.name + ending for ending in ("", "-wal", "-shm", "-journal")}
    same_folder = target.parent.resolve() == source.parent.resolve()
    same_file = target.exists() and source.exists() and target.samefile(source)
    if same_file or (same_folder and target.name in beside):
        raise UsageError(f"{target}: this is the trace itself; name another file")
    if target.exists() and not force:
        raise UsageError(f"{target} exists; give another name or --force")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: there is no folder {target.parent}")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A file in the target's folder that is gone afterwards unless it was given the target's name."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".scrub-", suffix=".sqlite", dir=target.parent)
    except OSError as error:
        raise TracekitError(f"{target}: cannot be written ({(error.strerror or '').lower()})") from error
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


# The check


def _closed(trace: Trace, window: Window | None) -> tuple[int, int] | None:
    """The window with its open sides at the ends of the trace."""
    if window is None:
        return None
    low, high = window
    return trace.start_ns if low is None else low, trace.end_ns if high is None else high


def _reports(trace: Trace, window: tuple[int, int] | None) -> list[GapReport]:
    """What `gaps` says of a trace, grouped in every way it knows."""
    return [gaps(trace, by, Selection(window=window)) for by in GROUPINGS]


def _check_answers(
    source: Path, before: list[GapReport], after: list[GapReport], wanted: Wanted, cleaner: Cleaner
) -> None:
    for old, new in zip(before, after, strict=True):
        expected = _comparable(old, wanted, cleaner)
        found = _comparable(new, wanted, cleaner)
        odd = [name for name, value in expected.items() if found[name] != value]
        if odd:
            raise TracekitError(
                f"{source}: the copy's gaps by {old.by} differ in {', '.join(odd)}; nothing was written. "
                "Try it without --window, with --rename-ranges --rename-kernels, and report this"
            )


def _comparable(report: GapReport, wanted: Wanted, cleaner: Cleaner) -> dict[str, object]:
    """The fields of a report as they are in a copy of it."""
    recording = report.recording
    gpus = tuple(replace(gpu, name=cleaner.clean(gpu.name)) for gpu in recording.gpus)
    said = tuple(replace(w, message=cleaner.clean(w.message)) for w in report.warnings)
    fields = {name: getattr(report, name) for name in report.__dataclass_fields__} | {
        "recording": replace(recording, file="", gpus=gpus, warnings=(), gpu_of_device={}),
        "warnings": said,
        "rows": _comparable_rows(report, wanted, cleaner),
    }
    return {name: value for name, value in fields.items() if not (wanted.window and name in EDGES)}


def _comparable_rows(report: GapReport, wanted: Wanted, cleaner: Cleaner) -> list[GapRow]:
    """Names as they are in a copy; where they are numbers there, without names and in no order."""
    renamed = (report.by == "range" and wanted.rename_ranges) or (
        report.by in ("pair", "kernel") and wanted.rename_kernels
    )
    rows = []
    for row in report.rows:
        spelled = {k: cleaner.clean(v) if isinstance(v, str) else v for k, v in row.key.items()}
        rows.append(replace(row, key={} if renamed else spelled))
    return sorted(rows, key=repr) if renamed else rows


def _check_texts(source: Path, copy: Path, cleaner: Cleaner) -> None:
    """Nothing private in any text of the copy, nor anywhere else in its bytes."""
    texts = list(nsys_copy.texts_in(copy))
    if any(map(cleaner.is_private, texts)) or _in_bytes(copy, cleaner, texts) or nsys_copy.free_pages(copy):
        raise TracekitError(
            f"{source}: something private would be left in the copy; nothing was written. Try it with "
            "--rename-ranges --rename-kernels, and report this"
        )


def _in_bytes(copy: Path, cleaner: Cleaner, texts: list[str]) -> bool:
    """Whether a path or a private word is in the file's bytes, as part of whatever."""
    spelled = "\0".join(texts)
    words = [word.encode() for word in cleaner.raw_words if word not in spelled]  # else part of a longer word
    overlap = b""
    with copy.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            block = overlap + block
            if cleaner.raw_path.search(block) or any(word in block for word in words):
                return True
            overlap = block[-OVERLAP_BYTES:]
    return False
