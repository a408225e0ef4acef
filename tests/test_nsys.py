"""Finding nsys, running it, and what a failed run says: on a folder tree and a shell script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_nsys import empty_path, write_nsys, write_program
from tracekit.capture.nsys import (
    Nsys,
    Recording,
    export_report,
    find_nsys,
    is_worth_showing,
    nsys_version,
    profile_command,
    record,
    report_path,
)
from tracekit.errors import CaptureError


def found(root: Path, **variables: str) -> Nsys:
    return find_nsys({**empty_path(root), **variables}, root)


def test_the_variable_comes_first(tmp_path: Path) -> None:
    named = write_nsys(tmp_path / "mine")
    write_nsys(tmp_path / "opt/nvidia/nsight-systems/2025.3.1")

    nsys = found(tmp_path, TRACEKIT_NSYS=str(named))

    assert (nsys.path, nsys.found) == (named, "$TRACEKIT_NSYS")


def test_a_variable_that_names_no_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="TRACEKIT_NSYS is /nowhere/nsys, which is no program"):
        found(tmp_path, TRACEKIT_NSYS="/nowhere/nsys")


def test_path_comes_before_the_folders(tmp_path: Path) -> None:
    on_path = write_program(tmp_path / "bin/nsys", "#!/bin/sh\n")
    write_nsys(tmp_path / "opt/nvidia/nsight-systems/2025.3.1")

    assert found(tmp_path, PATH=str(on_path.parent)).path == on_path


def test_the_newest_of_several_versions_is_taken(tmp_path: Path) -> None:
    for version in ("2024.6.2", "2025.10.1", "2025.3.1"):
        write_nsys(tmp_path / f"opt/nvidia/nsight-systems/{version}", importer=True)

    nsys = found(tmp_path)

    assert nsys.path == tmp_path / "opt/nvidia/nsight-systems/2025.10.1/target-linux-x64/nsys"
    assert nsys.importer == tmp_path / "opt/nvidia/nsight-systems/2025.10.1/host-linux-x64/QdstrmImporter"


@pytest.mark.parametrize("place", ["usr/local/cuda-13.0/bin", "opt/nvidia/nsight-systems-cli/2025.3.1/bin"])
def test_toolkit_and_package_folders_are_looked_into(tmp_path: Path, place: str) -> None:
    program = write_program(tmp_path / place / "nsys", "#!/bin/sh\n")

    assert found(tmp_path).path == program


def test_the_parts_inside_nsight_compute_are_laid_out_in_the_cache(tmp_path: Path) -> None:
    host = tmp_path / "opt/nvidia/nsight-compute/2025.3.1/host"
    write_nsys(host)
    write_program(host / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter", "#!/bin/sh\n")

    nsys = found(tmp_path)

    place = tmp_path / "cache/nsys-2025.3.1"
    assert nsys.path == place / "target-linux-x64/nsys"
    assert nsys.importer == place / "host-linux-x64/QdstrmImporter"
    assert found(tmp_path) == nsys  # the second time nothing is copied
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["nsys-2025.3.1"]


def test_none_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"install Nsight Systems .*TRACEKIT_NSYS.*--backend cupti"):
        found(tmp_path)


def test_the_flags_are_few_and_the_users_come_after_them() -> None:
    recording = Recording(("python", "x.py"), "graph", capture_range=True, nsys_args=("--sample=cpu",))

    assert profile_command(Nsys(Path("/n/nsys"), ""), recording, Path("out/x")) == [
        "/n/nsys", "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "--cuda-graph-trace=graph",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--sample=cpu",
        "-o", "out/x", "--force-overwrite=true", "python", "x.py",
    ]  # fmt: skip


def test_a_recording_runs_the_program_and_exports(tmp_path: Path) -> None:
    lines: list[str] = []
    nsys = Nsys(write_nsys(tmp_path), "")

    recorded = record(nsys, Recording(("echo", "hello")), tmp_path / "x.sqlite", lines.append)

    assert (tmp_path / "x.sqlite").read_text() == "recorded"
    assert recorded.report == tmp_path / "x.nsys-rep"
    assert lines == ["hello"]  # and none of nsys's progress


def test_a_program_that_fails_shows_its_last_lines_and_keeps_the_report(tmp_path: Path) -> None:
    nsys = Nsys(write_nsys(tmp_path), "")
    program = ("sh", "-c", "echo out of memory; exit 3")

    with pytest.raises(
        CaptureError, match=r"(?s)exit code 3; the report is kept as .*x\.nsys-rep:.*out of memory"
    ):
        record(nsys, Recording(program), tmp_path / "x.sqlite", lambda line: None)

    assert (tmp_path / "x.nsys-rep").exists()
    assert not (tmp_path / "x.sqlite").exists()


def test_a_qdstrm_left_behind_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "qdstrm")
    path = write_nsys(tmp_path, importer=True)
    nsys = Nsys(path, "", tmp_path / "host-linux-x64/QdstrmImporter")

    record(nsys, Recording(("true",)), tmp_path / "x.sqlite", lambda line: None)

    assert (tmp_path / "x.sqlite").read_text() == "recorded"


def test_a_qdstrm_without_an_importer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "qdstrm")

    with pytest.raises(CaptureError, match=r"x\.qdstrm: nsys left it unimported and QdstrmImporter is not"):
        record(Nsys(write_nsys(tmp_path), ""), Recording(("true",)), tmp_path / "x.sqlite", lambda line: None)


def test_no_report_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "no-report")

    with pytest.raises(CaptureError, match="nsys wrote no report"):
        record(Nsys(write_nsys(tmp_path), ""), Recording(("true",)), tmp_path / "x.sqlite", lambda line: None)


def test_an_export_without_its_libraries_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "bad-export")
    (tmp_path / "x.nsys-rep").write_text("recorded")

    with pytest.raises(
        CaptureError, match=r"x\.nsys-rep: nsys cannot export it \(libdw\.so missing: install libdw1"
    ):
        export_report(tmp_path / "x.nsys-rep", write_nsys(tmp_path), tmp_path / "x.sqlite")


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="/nowhere/nsys: cannot be started"):
        record(
            Nsys(Path("/nowhere/nsys"), ""), Recording(("true",)), tmp_path / "x.sqlite", lambda line: None
        )


def test_the_version_is_read(tmp_path: Path) -> None:
    assert nsys_version(Nsys(write_nsys(tmp_path), "")) == "2025.3.2.474"
    assert nsys_version(Nsys(Path("/nowhere/nsys"), "")) is None


def test_a_dot_in_the_name_is_no_ending_for_nsys() -> None:
    assert report_path(Path("a.b/run.v2.sqlite")) == Path("a.b/run_v2")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("", False),
        ("Collecting data...", False),
        ("[1/2] [=====50%      ] x.nsys-rep", False),
        ("Generating '/tmp/nsys-report-1a2b.qdstrm'", False),
        ("Generated:", False),
        ("\t/tmp/x.nsys-rep", False),
        ("Generated 5 tokens", True),
        ("graph + PDL      156.3 us per forward", True),
        ("The target application returned non-zero exit code 1", True),
    ],
)
def test_progress_is_told_from_output(line: str, shown: bool) -> None:
    assert is_worth_showing(line) is shown
