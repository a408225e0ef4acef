"""A copy that can be mailed: what is planted in an export, what is in no byte of the copy, what stays."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.build import Call, Copy, Diagnostic, Gpu, Kernel, Range, Replay, Wait, build_trace, node
from tests.run import GROUPINGS, gaps, run
from tests.test_fuzz import odd_tables, tables, times
from tracekit import cli_scrub
from tracekit.errors import TraceError, TracekitError, UnanswerableError, UsageError
from tracekit.readers import nsys_copy
from tracekit.readers.nsys_schema import PrivateTexts
from tracekit.scrub import Wanted, make_cleaner, scrub

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
SAMPLES = Path(__file__).parents[1] / "sample_traces"
EVERYTHING = [Wanted(), Wanted(slim=True), Wanted(rename_kernels=True, rename_ranges=True)]
ENVIRONMENT = {
    "TOKEN": "hunter2secret",
    "USER": "mallory",
    "HOME": "/u/mallory",
    "PATH": "/opt/tool-x/bin:/usr/bin",
    "MASTER_ADDR": "10.20.30.40",
}
PLANTED = [
    *ENVIRONMENT.values(),
    "node17",
    "node17.cluster",
    "--password=swordfish",
    "secret-thread",
    "GPU-5e1a1",
]


def planted(path: Path) -> Path:
    """An export with secrets where nsys puts them, and where a program may put them."""
    tid = (1 << 48 | 100 << 24) + 100
    capture = [("PROCESS_0:ENVIRONMENT_VARIABLE", f"{k}={v}") for k, v in ENVIRONMENT.items()]
    capture += [("PROCESS_0:ARGUMENT_1", "--password=swordfish"), ("PROCESS_0:WORKING_DIR", "/u/mallory/run")]
    return build_trace(
        path,
        kernels=[Kernel(10, 20, "void k<int>(int*)", id=1), Kernel(24, 30, "gemm_of_mallory", id=2)],
        calls=[Call(1, 3, 1), Call(4, 6, 2)],
        ranges=[
            Range(0, 9, "step"),
            Range(0, 9, "load /u/mallory/w.pt for node17", domain="train"),
            Range(0, 9, "hunter2secret", registered=True),
            Range(0, 9, "secret-thread", kind=39),
        ],
        gpus=[Gpu()],
        device_map=[(100, 0, 0)],
        diagnostics=[Diagnostic(2, "cannot open /u/mallory/x.log"), Diagnostic(1, "swordfish")],
        mode="Node",
        capture=capture,
        extra={
            "TARGET_INFO_SYSTEM_ENV": [{"name": "Hostname", "value": "node17.cluster"}],
            "PROCESSES": [{"globalPid": 1 << 48 | 100 << 24, "pid": 100, "name": "/u/mallory/bin/app"}],
            "ThreadNames": [{"nameId": 7001, "globalTid": tid}],
            "ANALYSIS_FILE": [{"id": 0, "filename": "/tmp/out.log", "contentId": 7002}],
            "TARGET_INFO_NEW_IN_4": [{"uuid": "GPU-5e1a1", "note": "of mallory"}],
        },
    )  # fmt: skip


def reports(path: Path, *options: object) -> list[dict[str, Any]]:
    found = [gaps(path, by, *options) for by in GROUPINGS]
    for document in found:
        del document["trace"]["file"]
    return found


def names(path: Path, by: str) -> list[str]:
    return sorted(str(next(iter(row["key"].values()))) for row in gaps(path, by)["rows"])


@pytest.mark.parametrize("wanted", [*EVERYTHING, Wanted(window=(0, 50))], ids=str)
def test_nothing_planted_is_in_any_byte_of_the_copy(wanted: Wanted, tmp_path: Path) -> None:
    source, copy = planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"

    made = scrub(source, copy, wanted)

    content = copy.read_bytes()
    assert [secret for secret in PLANTED if secret.encode() in content] == []
    assert b"mallory" not in content
    assert b"swordfish" not in content
    assert b"/u/" not in content
    assert (made.kernels, made.ranges, made.copy_bytes) == (2, 3, len(content))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.sqlite", "out.sqlite"]


def test_names_keep_all_but_their_private_parts(tmp_path: Path) -> None:
    source, copy = planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"

    made = scrub(source, copy, Wanted())

    assert names(copy, "kernel") == ["gemm_of_<private 3>"]
    assert names(copy, "range") == ["<private 4>", "step", "train:load <path 1> for <private 2>"]
    assert made.replaced == 3
    assert gaps(copy)["warnings"] == gaps(source)["warnings"]


def test_names_become_numbers_when_asked_for(tmp_path: Path) -> None:
    source, copy = planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"

    scrub(source, copy, Wanted(rename_kernels=True, rename_ranges=True))

    (pair,) = gaps(copy, "pair")["rows"]
    assert pair["key"] == {"previous": "kernel 1", "next": "kernel 2"}
    assert names(copy, "range") == ["domain 1:range 3", "range 2", "range 4"]
    assert b"gemm" not in copy.read_bytes()
    assert b"step" not in copy.read_bytes()


@pytest.mark.parametrize("slim", [False, True])
@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.sqlite")), ids=lambda path: path.stem)
def test_gaps_of_a_sample_and_its_copy_are_the_same(sample: Path, slim: bool, tmp_path: Path) -> None:
    source = shutil.copyfile(sample, tmp_path / "in.sqlite")  # without the sidecar beside it

    scrub(source, tmp_path / "out.sqlite", Wanted(slim=slim))

    assert reports(tmp_path / "out.sqlite") == reports(source)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the published traces are not here")
@pytest.mark.parametrize("wanted", EVERYTHING, ids=str)
@pytest.mark.parametrize("source", sorted(CORPUS.glob("*.sqlite")), ids=lambda path: path.stem)
def test_every_published_export_is_copied_or_refused_as_gaps_refuses_it(
    source: Path, wanted: Wanted, tmp_path: Path
) -> None:
    copy = tmp_path / "out.sqlite"
    refused = ("lfs_pointer", "v3.0.0_nvtx_without_cuda", "v3.1.7_calls_without_kernels")
    if source.stem in refused:
        with pytest.raises(TraceError):
            scrub(source, copy, wanted)
        assert not copy.exists()
        return

    scrub(source, copy, wanted)

    assert b"/home/" not in copy.read_bytes()
    if not wanted.rename_kernels:
        assert reports(copy) == reports(source)


@pytest.mark.parametrize(
    ("low", "kernels", "calls", "ranges"),
    [(15, [10, 13, 16, 19], [4], [3]), (9, [6, 10, 13, 16, 19], [1, 4], [-9, 3])],
)
def test_a_window_keeps_whole_replays_and_what_they_follow(
    low: int, kernels: list[int], calls: list[int], ranges: list[int], tmp_path: Path
) -> None:
    source = build_trace(
        tmp_path / "in.sqlite",
        kernels=[
            Kernel(0, 4, "early", id=1), Kernel(6, 8, "before", id=2),
            *(Kernel(10 + 3 * i, 12 + 3 * i, "node", id=3, node=node(1, i)) for i in range(4)),
            Kernel(30, 33, "late", id=4),
        ],
        calls=[Call(i - 5, i - 4, n) for n, i in ((1, 0), (2, 6), (3, 9), (4, 30))],
        copies=[Copy(25, 26), Copy(40, 41)],
        waits=[Wait(27, 28)],
        opaque_replays=[Replay(14, 15, 9, stream=8), Replay(50, 60, 10, stream=8)],
        ranges=[Range(-9, 2, "old"), Range(3, 20, "new"), Range(29, None, "open")],
        schema="3.20.3",
    )  # fmt: skip
    copy = tmp_path / "out.sqlite"

    scrub(source, copy, Wanted(window=(low, 29)))

    cut = gaps(copy, "range", "--window", f"{low}..29")
    whole = gaps(source, "range", "--window", f"{low}..29")
    assert (cut["rows"], cut["devices"]) == (whole["rows"], whole["devices"])
    assert (cut["trace"]["kernels"], whole["trace"]["kernels"]) == (len(kernels), 7)
    with closing(sqlite3.connect(copy)) as db:
        kept = [
            [start for (start,) in db.execute(f"SELECT start FROM {table}")]
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
        ]
    assert kept == [kernels, calls, ranges]
    assert b"early" not in copy.read_bytes()


def test_an_empty_window_has_no_answer(tmp_path: Path) -> None:
    with pytest.raises(UnanswerableError):
        scrub(planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite", Wanted(window=(90, 99)))

    assert not (tmp_path / "out.sqlite").exists()


def test_the_trace_and_its_log_are_left_alone(tmp_path: Path) -> None:
    source = planted(tmp_path / "in.sqlite")
    with closing(sqlite3.connect(source)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start = 24")
        writer.commit()
        before = {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in tmp_path.iterdir()}
        (tmp_path / "mail").mkdir()

        made = scrub(source, tmp_path / "mail/out.sqlite", Wanted())

        assert made.kernels == 1
        assert {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in before} == before
        assert len(list(tmp_path.iterdir())) == len(before) + 1


@pytest.mark.parametrize(
    "name", ["in.sqlite", "link.sqlite", "in.sqlite-wal", "there.sqlite", "no/folder.sqlite"]
)
def test_a_copy_goes_where_nothing_is(name: str, tmp_path: Path) -> None:
    source = planted(tmp_path / "in.sqlite")
    (tmp_path / "link.sqlite").symlink_to(source)
    (tmp_path / "there.sqlite").write_text("mine")

    with pytest.raises(UsageError):
        scrub(source, tmp_path / name, Wanted(), force=name not in ("there.sqlite",))

    assert (tmp_path / "there.sqlite").read_text() == "mine"
    assert scrub(source, tmp_path / "there.sqlite", Wanted(), force=True).kernels == 2


def test_other_traces_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}]}')

    with pytest.raises(TraceError, match="only nsys SQLite exports can be scrubbed"):
        scrub(tmp_path / "x.json", tmp_path / "out.sqlite", Wanted())


@pytest.mark.parametrize("fault", ["a time", "a text", "bytes between the rows", "a free page"])
def test_a_copy_that_is_none_is_not_given_out(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = {
        "a time": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 1",
        "a text": "UPDATE StringIds SET value = value || ' of mallory'",
        "a free page": "CREATE TABLE gone (x); DROP TABLE gone",
    }
    honest = nsys_copy.write

    def write(file: Any, path: Path, *rest: Any) -> None:
        honest(file, path, *rest)
        if fault in statement:
            with closing(sqlite3.connect(path)) as db:
                db.executescript(statement[fault])
        else:
            path.write_bytes(path.read_bytes().replace(bytes(40), b"hunter2secret".ljust(40, b"\0"), 1))

    monkeypatch.setattr(nsys_copy, "write", write)

    with pytest.raises(TracekitError, match="nothing was written"):
        scrub(planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite", Wanted())

    assert [p.name for p in tmp_path.iterdir()] == ["in.sqlite"]


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, copy = planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"

    cli_scrub.scrub(source, copy, slim=True, window="0..50")

    printed = capsys.readouterr().out
    assert printed.startswith("out.sqlite: 0.0")
    assert "2 kernels, 3 ranges." in printed
    assert "`tracekit gaps --window` gives the same for both" in printed


PRIVATE = PrivateTexts(("ada", "root"), ("abc", "/srv7/models", "sk-12345", "123456"), ("/cluster/x/y",))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("layer<a/b>", "layer<a/b>"),
        ("/backbone/conv1/Conv", "/backbone/conv1/Conv"),  # a layer of a network
        ("train/data/load", "train/data/load"),
        ("operator/(float)", "operator/(float)"),
        ("see /home/x.y/z, and", "see <path 1>, and"),
        ("file:/home/ada/a", "file:<path 1>"),
        ("'/tmp/a b'", "'<path 1> b'"),
        ("/cluster/z and /srv7/q", "<path 1> and <path 2>"),  # roots that the export itself names
        ("/strange/place/x.py:12", "<path 1>:12"),
        (r"C:\Users\Ada\x.cu(3)", "<path 1>(3)"),
        (r"\\server\share\x", "<path 1>"),
        ("~/x ~bob/y", "<path 1> <path 2>"),
        ("ada adapter ada_1 Ada", "<private 1> adapter <private 1>_1 Ada"),
        ("root of abc 123456", "root of abc 123456"),
        ("key sk-12345", "key <private 1>"),
    ],
)
def test_what_is_private_in_a_text(text: str, cleaned: str) -> None:
    cleaner = make_cleaner(PRIVATE, "NVIDIA H200")

    assert cleaner.clean(text) == cleaned
    assert cleaner.is_private(text) == (text != cleaned)
    assert not cleaner.is_private(cleaned)


def test_what_a_gpu_is_called_is_no_secret() -> None:
    assert (
        make_cleaner(replace(PRIVATE, variables=("NVIDIA H200",)), "2025.3 NVIDIA H200").is_private(
            "NVIDIA H200"
        )
        is False
    )


OPTIONS = st.builds(
    Wanted,
    rename_kernels=st.booleans(),
    rename_ranges=st.booleans(),
    slim=st.booleans(),
    window=st.one_of(
        st.none(), st.none(), st.builds(lambda low, size: (low, low + size), times, st.integers(1, 40))
    ),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)
@given(rows=st.one_of(tables, odd_tables), wanted=OPTIONS)
def test_any_export_that_gaps_reads_is_copied(rows: dict[str, Any], wanted: Wanted, tmp_path: Path) -> None:
    source, copy = build_trace(tmp_path / "in.sqlite", **rows), tmp_path / "out.sqlite"
    options = ["--window={}..{}".format(*wanted.window)] if wanted.window else []
    readable = run("gaps", source, "--json", *options).code == 0

    try:
        scrub(source, copy, wanted, force=True)
    except TracekitError as error:
        # Cutting may change how processes are told apart: two hosts of one process id, one of them cut off.
        assert not readable or wanted.window, error
        return

    assert readable
    assert wanted.window or gaps(copy)["trace"]["kernels"] == gaps(source)["trace"]["kernels"]
