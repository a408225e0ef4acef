"""The command line: what it prints, its errors and exit codes, and that it writes nothing anywhere."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.build import Call, Diagnostic, Gpu, Kernel, Range, build_trace
from tests.run import gaps, row, run, warned
from tracekit.cli import main

SAMPLES = Path(__file__).parents[1] / "sample_traces"
NODE = SAMPLES / "pdl_chain_node.sqlite"
CHAIN = [Kernel(100, 110, "a"), Kernel(115, 120, "b"), Kernel(140, 150, "a")]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return build_trace(tmp_path / "trace.sqlite", kernels=CHAIN)


def refusal(*arguments: object, code: int = 1) -> str:
    """The one line that the command says instead of an answer."""
    outcome = run(*arguments)
    assert (outcome.code, outcome.out) == (code, ""), outcome
    assert outcome.err.startswith("tracekit: ") and outcome.err.count("\n") == 1, outcome.err
    return outcome.err


# Bad input: one line, exit 1


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in refusal("gaps", tmp_path / "none.sqlite")


def test_a_folder(tmp_path: Path) -> None:
    assert "is a directory" in refusal("gaps", tmp_path)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.sqlite", b"", "empty"),
        ("pointer.sqlite", LFS, "git lfs pull"),
        ("pointer.nsys-rep", LFS, "git lfs pull"),
        ("text.sqlite", b"start,end\n1,2\n", "not a trace"),
        ("report.nsys-rep", b"NSYS\0\1\2", "nsys export"),
        ("picture.sqlite", b"\x89PNG\r\n\x1a\n" + bytes(100), "not a trace"),
        ("header.sqlite", b"SQLite format 3\0", "cut off"),
    ],
)
def test_content_that_is_no_export(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    assert said in refusal("gaps", write(tmp_path / name, content))


def test_a_sqlite_file_that_is_no_export(tmp_path: Path) -> None:
    path = build_trace(
        tmp_path / "x.sqlite", extra={"songs": [{"title": "x"}]}, drop=["StringIds"], schema=None
    )
    assert "not an nsys export" in refusal("gaps", path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_copy_cut_off(tmp_path: Path, share: float) -> None:
    content = NODE.read_bytes()
    assert "cut off" in refusal("gaps", write(tmp_path / "cut.sqlite", content[: int(len(content) * share)]))


@pytest.mark.parametrize("word", [b"CREATE", b"TABLE", b"INTEGER", b"KIND_KERNEL", b"start"])
def test_a_damaged_schema(trace: Path, word: bytes) -> None:
    """SQLite quotes the bad bytes in its message."""
    trace.write_bytes(trace.read_bytes().replace(word, b"\x80" + word[1:]))
    outcome = run("gaps", trace)
    assert outcome.code in (0, 1) and outcome.err.count("\n") == outcome.code


def test_an_export_that_broke_off(tmp_path: Path) -> None:
    """Three tables and no META_DATA_EXPORT."""
    path = build_trace(tmp_path / "x.sqlite", schema=None, lazy=False)
    with closing(sqlite3.connect(path)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master").fetchall():
            if table not in ("StringIds", "NVTX_EVENTS", "TARGET_INFO_GPU"):
                db.execute(f"DROP TABLE {table}")
        db.commit()
    assert "broke off" in refusal("gaps", path)


def test_an_export_that_broke_off_with_kernels_in_it(tmp_path: Path) -> None:
    """Some rows are there, the description is not, and a hot journal lies beside it."""
    path = build_trace(tmp_path / "x.sqlite", kernels=CHAIN, schema=None)
    (tmp_path / "x.sqlite-journal").write_bytes(
        b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0\0\0\1" + bytes(1000)
    )
    outcome = run("gaps", path, "--json")
    assert outcome.code in (0, 1) and outcome.err.count("\n") <= 1


def test_a_file_that_another_process_writes_to(trace: Path) -> None:
    with closing(sqlite3.connect(trace, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert "another program is writing" in refusal("gaps", trace)
        writer.execute("ROLLBACK")
    assert run("gaps", trace).code == 0


def test_calls_without_kernels(tmp_path: Path) -> None:
    path = build_trace(tmp_path / "x.sqlite", calls=[Call(1, 2)], diagnostics=[Diagnostic(3, "events lost")])
    assert "no GPU activity" in refusal("gaps", path) and "events lost" in refusal("gaps", path)


def test_ranges_only(tmp_path: Path) -> None:
    assert "only NVTX" in refusal("gaps", build_trace(tmp_path / "x.sqlite", ranges=[Range(1, 2)]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(trace: Path) -> None:
    trace.chmod(0)
    assert "permission denied" in refusal("gaps", trace)


# Usage: exit 2; a question without an answer: exit 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["gaps"],
        ["gaps", "x.sqlite", "--by", "moon"],
        ["gaps", "x.sqlite", "--where", "moon"],
        ["gaps", "x.sqlite", "--top", "0"],
        ["gaps", "x.sqlite", "--json", "--csv"],
        ["gaps", "x.sqlite", "--window", "5"],
        ["gaps", "x.sqlite", "--window", "9..5"],
        ["gaps", "x.sqlite", "--window", "a..b"],
        ["gaps", "x.sqlite", "--moon"],
        ["moon"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2 and outcome.out == "" and "Traceback" not in outcome.err


@pytest.mark.parametrize("window", ["1us..2us", "0..50", "150..", "..100"])
def test_a_window_without_activity(trace: Path, window: str) -> None:
    assert "100 to 150" in refusal("gaps", trace, "--window", window, code=3)


def test_a_window_in_a_gap_of_the_gpu(trace: Path) -> None:
    """Between the first and the last kernel, but nothing runs in it."""
    assert "no GPU activity" in refusal("gaps", trace, "--window", "121..139", code=3)


def test_an_unknown_range_lists_what_there_is(tmp_path: Path) -> None:
    path = build_trace(
        tmp_path / "x.sqlite", kernels=CHAIN, ranges=[Range(1, 2, "decode"), Range(1, 2, "prefill")]
    )
    assert "decode, prefill" in refusal("gaps", path, "--range", "moon")


def test_an_unknown_process_or_device_lists_what_there_is(trace: Path) -> None:
    assert "there is: 100" in refusal("gaps", trace, "--process", 5)
    assert "there is: 0" in refusal("gaps", trace, "--device", 5)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "\\", "(?P<x"])
def test_a_pattern_that_is_no_pattern(tmp_path: Path, pattern: str) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=CHAIN, ranges=[Range(1, 2, "decode")])
    assert "decode" in refusal("gaps", path, "--range", pattern)


# Output


def test_json_alone_on_stdout(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaps", str(trace), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["format"] == "tracekit.gaps/1"
    assert printed.err == ""


def test_several_traces(trace: Path) -> None:
    outcome = run("gaps", trace, NODE, trace, "--json")
    assert outcome.document["format"] == "tracekit.gaps-set/1"
    assert [d["trace"]["kernels"] for d in outcome.document["traces"]] == [3, 16_800, 3]
    words = run("gaps", trace, NODE).out
    assert "All traces" in words and "16,800" in words


def test_several_traces_one_of_them_broken(trace: Path, tmp_path: Path) -> None:
    broken = write(tmp_path / "broken.sqlite", b"")
    assert "broken.sqlite" in refusal("gaps", trace, broken, "--json")


def test_csv_holds_the_rows(trace: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(run("gaps", trace, "--csv").out)))
    assert [(x["previous"], x["next"], x["gap_median_ns"]) for x in lines] == [
        ("b", "a", "20.0"),
        ("a", "b", "5.0"),
    ]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1", "\n=1", "＝1+1"])
def test_csv_formulas_are_text(tmp_path: Path, name: str) -> None:
    """A spreadsheet runs a cell that begins like a formula."""
    path = build_trace(tmp_path / "x.sqlite", kernels=[Kernel(1, 2, name), Kernel(3, 4, name)])
    line = next(csv.DictReader(io.StringIO(run("gaps", path, "--csv").out)))
    assert line["next"].strip()[0] not in "=+-@＝"


def test_a_csv_file_name_is_no_formula(tmp_path: Path) -> None:
    path = build_trace(tmp_path / "=cmd.sqlite", kernels=CHAIN)
    assert next(csv.DictReader(io.StringIO(run("gaps", path, "--csv").out)))["file"] == "'=cmd.sqlite"


def test_csv_without_rows_is_still_csv(tmp_path: Path) -> None:
    """The header says which columns there would be."""
    path = build_trace(tmp_path / "x.sqlite", kernels=[Kernel(1, 2)])
    assert run("gaps", path, "--csv").out.startswith("file,")


def test_top_keeps_the_largest(trace: Path) -> None:
    assert [r["white_ns"] for r in gaps(trace, "pair", "--top", 1)["rows"]] == [20]


HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "a\nb\r\n",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\0",
    "[bold red]x[/bold red]",
    "[link=https://x]y[/link]",
    "[/]",
    ":smile:",
    "</script><script>alert(1)</script>",
    "{{x}}",
    "'; DROP TABLE StringIds; --",
    '"; --',
    "%s %d %(x)s {0}",
    "\U000e0041",
    "a\u200bb",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("by", ["pair", "kernel", "range"])
def test_names_are_shown_not_obeyed(tmp_path: Path, name: str, by: str) -> None:
    path = build_trace(
        tmp_path / "x.sqlite",
        kernels=[Kernel(10, 20, name, id=1), Kernel(30, 40, name, id=2)],
        calls=[Call(1, 2, id=1), Call(3, 4, id=2)],
        ranges=[Range(0, 9, name)],
        gpus=[Gpu(0, name)],
        diagnostics=[Diagnostic(2, name)],
    )
    outcome = run("gaps", path, "--by", by)
    assert outcome.code == 0
    assert all(c == "\n" or c.isprintable() for c in outcome.out), ascii(outcome.out)
    if name.isprintable():
        assert name in outcome.out
    assert json.loads(run("gaps", path, "--by", by, "--json").out)["rows"][0]["where"] == "launch"


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_of_a_step_are_shown_not_obeyed(tmp_path: Path, name: str) -> None:
    """As kernel and as range, in the estimate held against a trace and in the export to Perfetto."""
    path = build_trace(
        tmp_path / "x.sqlite",
        kernels=[Kernel(10, 20, name, id=1), Kernel(30, 40, name, id=2)],
        calls=[Call(1, 2, id=1), Call(3, 4, id=2)],
        ranges=[Range(0, 3, name), Range(3, 5, name)],
    )
    outcome = run("estimate", "--trace", path)
    assert outcome.code == 0
    assert all(c == "\n" or c.isprintable() for c in outcome.out), ascii(outcome.out)
    measured = run("estimate", "--trace", path, "--json").document["measured"]
    assert [one["name"] for one in measured["unmatched"]] == [name]
    assert run("export", path, "--perfetto", tmp_path / "x.json.gz").code == 0
    events = json.loads(gzip.decompress((tmp_path / "x.json.gz").read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "kernel"]
    assert len(names) == 2 and all(one.isprintable() for one in names)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_in_messages_are_shown_not_obeyed(tmp_path: Path, name: str) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=CHAIN, ranges=[Range(0, 9, name)])
    said = refusal("gaps", path, "--range", "no such \x1b[31m")
    assert all(c == "\n" or c.isprintable() for c in said), ascii(said)


def test_long_names_are_cut_in_the_middle_and_never_merged(tmp_path: Path) -> None:
    long = [f"void gemm<{'float, ' * 40}{i}, {'int, ' * 40}>::run()" for i in range(3)]
    path = build_trace(
        tmp_path / "x.sqlite", kernels=[Kernel(10 * i, 10 * i + 5, long[i % 3]) for i in range(1, 9)]
    )
    lines = [line for line in run("gaps", path, "--by", "kernel").out.splitlines() if "void gemm" in line]
    shown = [line.split("  ")[0] for line in lines]
    assert len(set(shown)) == 3 and all("…" in name or "..." in name for name in shown)
    assert all(len(name) < 80 for name in shown)


def test_wide_characters_and_emoji(tmp_path: Path) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=[Kernel(1, 2, "核" * 90), Kernel(3, 4, "🚀" * 90)])
    assert run("gaps", path).code == 0


def test_stdout_that_cannot_encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=[Kernel(1, 2, "核"), Kernel(3, 4, "é")])
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["gaps", str(path)]) == 0


# File names


ODD_NAMES = [
    "with space",
    "100%.41",
    "what?mode=rw",
    "a#b",
    "it's",
    'say "x"',
    "line\nbreak",
    "-dash",
    "[x]",
    "ü&é;",
    "a:b",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    path = build_trace(tmp_path / f"{name}.sqlite", kernels=CHAIN)
    assert gaps(path)["trace"]["file"] == path.name
    assert run("gaps", path).code == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=CHAIN)
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.sqlite"))
    path.rename(odd)
    assert run("gaps", odd).code == 0
    assert run("gaps", odd, "--json").code == 0
    assert run("gaps", odd, "--csv").code == 0


def test_a_symbolic_link(trace: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(trace)
    assert gaps(link)["trace"]["kernels"] == 3


def test_an_export_under_any_name(trace: Path, tmp_path: Path) -> None:
    assert gaps(trace.rename(tmp_path / "x.nsys-rep"))["trace"]["kernels"] == 3


# Nothing is written


def state(folder: Path) -> dict[str, str]:
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite")), ids=lambda path: path.name)
def test_nothing_is_written_beside_a_sample(tmp_path: Path, sample: Path) -> None:
    path = Path(shutil.copy(sample, tmp_path))
    before = state(tmp_path)
    for options in (["--json"], ["--csv"], ["--by", "range"]):
        assert run("gaps", path, *options).code == 0
    assert state(tmp_path) == before


def logged(path: Path, *, more: list[Kernel]) -> sqlite3.Connection:
    """Turn the trace into one with a write-ahead log that holds more kernels; kept open."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA wal_autocheckpoint=0")
    rows = [(k.start, k.end, k.stream, k.device, k.context) for k in more]
    columns = "start, end, streamId, deviceId, contextId"
    db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES (?,?,?,?,?)", rows)
    db.commit()
    return db


def test_a_log_beside_the_file_is_read_and_stays(trace: Path, tmp_path: Path) -> None:
    with closing(logged(trace, more=[Kernel(200, 210), Kernel(220, 230)])):
        before = state(tmp_path)
        assert gaps(trace)["trace"]["kernels"] == 5
        assert state(tmp_path) == before


def test_a_log_without_its_writer(trace: Path, tmp_path: Path) -> None:
    """The writer died: copies of the file and its log."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(logged(trace, more=[Kernel(200, 210)])):
        for path in (trace, Path(f"{trace}-wal")):
            shutil.copy(path, copy)
    before = state(copy)
    assert gaps(copy / trace.name)["trace"]["kernels"] == 4
    assert state(copy) == before


def test_a_log_beside_a_symbolic_link(trace: Path, tmp_path: Path) -> None:
    """SQLite's log lies beside the file that the link names."""
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "link.sqlite").symlink_to(trace)
    with closing(logged(trace, more=[Kernel(200, 210)])):
        before = state(tmp_path)
        assert gaps(folder / "link.sqlite")["trace"]["kernels"] == 4
        assert state(tmp_path) == before


def test_a_file_in_log_mode_without_a_log(trace: Path, tmp_path: Path) -> None:
    logged(trace, more=[]).close()
    before = state(tmp_path)
    assert list(before) == [str(trace)]
    assert gaps(trace)["trace"]["kernels"] == 3
    assert state(tmp_path) == before


def test_a_read_only_file_in_a_read_only_folder(trace: Path, tmp_path: Path) -> None:
    trace.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert gaps(trace)["trace"]["kernels"] == 3
        assert [p.name for p in tmp_path.iterdir()] == [trace.name]
    finally:
        tmp_path.chmod(0o755)


# Secrets


SECRET = "hunter2secret"


def with_secrets(path: Path) -> Path:
    """An export with what nsys keeps of the machine: environment, host, user, process and thread names."""
    return build_trace(
        path,
        kernels=[Kernel(100, 110, id=1), Kernel(120, 130, id=2)],
        calls=[Call(2, 4, id=1), Call(5, 6, id=2)],
        ranges=[Range(1, 5), Range(5, 9)],
        capture=[("ENVIRONMENT_VARIABLE", f"TOKEN={SECRET}"), ("PROCESS_0:USER_NAME", SECRET)],
        extra={
            "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": SECRET}],
            "PROCESSES": [{"globalPid": 0, "pid": 100, "name": f"/home/{SECRET}/python"}],
            "ThreadNames": [{"nameId": 1, "globalTid": 0}],
        },
    )


@pytest.mark.parametrize(
    "options", [["--json"], ["--csv"], [], *(["--by", by] for by in ("range", "stream", "kernel"))]
)
def test_environment_host_and_user_stay_in_the_file(tmp_path: Path, options: list[str]) -> None:
    path = with_secrets(tmp_path / "x.sqlite")
    outcome = run("gaps", path, *options)
    assert outcome.code == 0
    assert [line for line in outcome.out.splitlines() if SECRET in line] == []


def test_nor_are_they_in_any_other_output(tmp_path: Path) -> None:
    """The page is searched in test_report_page.py, the copy that can be mailed in test_scrub.py."""
    path = with_secrets(tmp_path / "x.sqlite")
    for options in ([], ["--json"], ["--csv"], ["--kernels"]):
        outcome = run("estimate", "--trace", path, "--model", "Qwen3-0.6B", "--gpu", "H200", *options)
        assert outcome.code == 0 and SECRET not in outcome.out
    assert run("export", path, "--perfetto", tmp_path / "x.json.gz").code == 0
    assert SECRET.encode() not in gzip.decompress((tmp_path / "x.json.gz").read_bytes())


@pytest.mark.parametrize(
    "text",
    [
        "cannot open /home/{}/x.py",
        "'/home/{}/y z.py': no such file",
        "path=/home/{}/x",
        "C:\\Users\\{}\\x.exe failed",
        "C:/Users/{}/x.exe failed",
        "\\\\{}\\share\\x failed",
        "file:///home/{}/x",
        "PATH is /bin:/home/{}",
        "~{}/x is missing",
        '"/home/some user/{}/x" is missing',
    ],
)
def test_paths_in_what_the_recording_says(tmp_path: Path, text: str) -> None:
    path = build_trace(tmp_path / "x.sqlite", kernels=CHAIN, diagnostics=[Diagnostic(2, text.format(SECRET))])
    assert SECRET not in run("gaps", path, "--json").out
    calls_only = build_trace(
        tmp_path / "x.sqlite", calls=[Call(1, 2)], diagnostics=[Diagnostic(2, text.format(SECRET))]
    )
    assert SECRET not in refusal("gaps", calls_only)


def test_a_warning_keeps_its_words(tmp_path: Path) -> None:
    path = build_trace(
        tmp_path / "x.sqlite", kernels=CHAIN, diagnostics=[Diagnostic(2, "3/4 events lost, see a/b")] * 2
    )
    document = gaps(path)
    assert warned(document)["recording"] == 2
    assert document["warnings"][0]["message"] == "3/4 events lost, see a/b"


def test_range_by_regular_expression(tmp_path: Path) -> None:
    """A name is matched whole: `step` is not `step_2`, `step.*` is both."""
    path = build_trace(
        tmp_path / "x.sqlite",
        kernels=[Kernel(10 * i, 10 * i + 5, id=i) for i in (1, 2, 3, 4)],
        calls=[Call(i, i, id=i) for i in (1, 2, 3, 4)],
        ranges=[Range(1, 3, "step"), Range(3, 5, "step_2")],
    )
    assert row(gaps(path, "none", "--range", "step"))["boundaries"] == 1
    assert row(gaps(path, "none", "--range", "step.*"))["boundaries"] == 2
