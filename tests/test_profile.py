"""`profile` from end to end on a fake nsys: the runs, the files, the sidecar, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

from tests.fake_nsys import write_nsys
from tracekit import cli_capture
from tracekit.capture import profile, workloads
from tracekit.capture.profile import Options, record
from tracekit.capture.sidecar import read_sidecar
from tracekit.capture.text import workloads_csv, workloads_json, workloads_text
from tracekit.errors import CaptureError, TracekitError, UnknownNameError, UsageError

WORKLOAD = '''
"""A workload without a GPU."""
import json, sys
SHOWS = "how a workload is recorded"
TRACED_ARGUMENTS = ("--repeats", "1")
if __name__ == "__main__":
    words = sys.argv[1:]
    if "--fail" in words:
        sys.exit("FAIL graph: element 3 is 1, expected 2")
    # a repeat costs 100 us untraced (the default is 3 of them), 120 us where the recorder asks for one
    repeats = [120_000] if "--repeats" in words else [100_000, 90_000, 105_000]
    tasks = [{"format": "tracekit.tasks/1", "file": words[-1]}] if "--timeline" in words else []
    result = {
        "format": "tracekit.workload-result/1",
        "timings": [{"mode": "graph", "kernels": 100, "passes": 1, "pass_ns": repeats}],
        "stamps": [], "facts": {"sm_clock_mhz": [1980.0], "tasks": tasks}, "gpu": {"name": "NVIDIA Fake"},
    }
    with open(words[words.index("--result") + 1], "w") as file:
        json.dump(result, file)
    print("words", *words[:-1])
'''


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake nsys, a registered workload, and the working folder in tmp_path."""
    (tmp_path / "fake_workload.py").write_text(WORKLOAD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRACEKIT_NSYS", str(write_nsys(tmp_path / "nsys")))
    monkeypatch.setitem(workloads.OWN, "fake", "fake_workload")
    monkeypatch.setattr(profile, "_require_gpu", lambda name: None)
    monkeypatch.chdir(tmp_path)


def silent(line: str) -> None:
    return None


def test_a_workload_runs_untraced_then_at_both_graph_levels() -> None:
    lines: list[str] = []

    recording = record(["fake", "--layers", "7"], Options(), lines.append)

    assert [line for line in lines if line.startswith("words")] == [
        "words --layers 7 --result",
        "words --repeats 1 --layers 7 --result",
        "words --repeats 1 --layers 7 --result",
    ]
    assert recording.trace == Path("fake.sqlite")
    assert recording.graph_trace == Path("fake-graph.sqlite")
    assert sorted(path.name for path in Path().glob("fake[.-]*")) == [
        "fake-graph.sqlite", "fake-graph.tracekit.json", "fake.sqlite", "fake.tracekit.json",
    ]  # fmt: skip


def test_the_sidecar_holds_both_times_and_no_folders(tmp_path: Path) -> None:
    record(["fake"], Options(), silent)

    sidecar = read_sidecar(Path("fake.tracekit.json"))
    assert sidecar.added_per_kernel_ns("graph", "node") == (120_000 - 100_000) / 100
    untraced = sidecar.timing("graph", "untraced")
    assert untraced is not None
    assert (untraced.pass_ns, untraced.min_ns, untraced.max_ns, untraced.repeats) == (
        100_000,
        90_000,
        105_000,
        3,
    )
    assert (sidecar.level, sidecar.backend, sidecar.workload) == ("node", "nsys", "fake")
    assert read_sidecar(Path("fake-graph.tracekit.json")).level == "graph"
    assert sidecar.machine.sm_clock_mhz == (1980.0,) * 3
    assert sidecar.versions["nsys"] == "2025.3.2.474"
    assert "--cuda-graph-trace=node" in sidecar.commands[-1].argv
    assert str(tmp_path) not in Path("fake.tracekit.json").read_text()


def test_a_sidecar_holds_the_tasks_that_its_own_traced_run_recorded() -> None:
    record(["fake", "--timeline"], Options(), silent)

    for name, level in (("fake", "node"), ("fake-graph", "graph")):
        (tasks,) = read_sidecar(Path(f"{name}.tracekit.json")).tasks
        assert tasks["file"].endswith(f"/{level}.json")  # the result file of that run


def test_a_users_command_is_timed_by_the_wall_clock() -> None:
    recording = record([sys.executable, "-c", "print(1)"], Options(output=Path("mine.sqlite")), silent)

    assert recording.sidecar.workload is None
    assert [(t.mode, t.level, t.clock, t.kernels) for t in recording.sidecar.timings] == [
        ("", level, "wall", None) for level in ("untraced", "graph", "node")
    ]


def test_nothing_is_overwritten_without_force() -> None:
    Path("fake-graph.sqlite").write_text("precious")

    with pytest.raises(CaptureError, match=r"fake-graph\.sqlite exists: .*--force"):
        record(["fake"], Options(), silent)
    assert Path("fake-graph.sqlite").read_text() == "precious"

    record(["fake"], Options(force=True), silent)
    assert Path("fake-graph.sqlite").read_text() == "recorded"


def test_nsys_report_is_kept_when_asked_for_and_counts_as_output() -> None:
    record(["fake"], Options(keep_report=True, levels=("node",)), silent)

    assert Path("fake.nsys-rep").exists()
    Path("fake.sqlite").unlink()
    Path("fake.tracekit.json").unlink()
    with pytest.raises(CaptureError, match=r"fake\.nsys-rep exists"):
        record(["fake"], Options(levels=("node",)), silent)


def test_a_workload_that_fails_is_not_traced() -> None:
    with pytest.raises(CaptureError, match=r"(?s)fake failed with exit code 1, untraced:.*element 3 is 1"):
        record(["fake", "--fail"], Options(), silent)

    assert not list(Path().glob("fake*.sqlite"))


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device", "fake.json")

    monkeypatch.setattr("tempfile.TemporaryDirectory", no_space)

    with pytest.raises(CaptureError, match=r"fake\.json: No space left on device; free space"):
        record(["fake"], Options(), silent)


@pytest.mark.parametrize(
    ("words", "options", "kind", "message"),
    [
        ([], Options(), UsageError, "nothing to record"),
        (["fakee"], Options(), UnknownNameError, r"did you mean fake\? .*pdl_chain.*profile -- COMMAND"),
        (["fake"], Options(output=Path("x.json")), UsageError, r"call it x\.sqlite"),
        (["fake"], Options(output=Path("none/x.sqlite")), CaptureError, "none: no such folder"),
        (["fake"], Options(backend="perf"), UsageError, "no backend 'perf'"),
        (["fake"], Options(backend="cupti", nsys_args=("-x",)), UsageError, "no meaning"),
        (["/bin/sh"], Options(backend="cupti"), CaptureError, "Python programs only"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_mistakes_are_one_line(
    words: list[str], options: Options, kind: type[TracekitError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        record(words, options, silent)

    assert "\n" not in str(error.value)


def test_no_gpu_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(profile, "visible_gpus", lambda: ())
    monkeypatch.setattr(profile, "cuda_version", lambda: None)

    with pytest.raises(CaptureError, match="pdl_chain needs an NVIDIA GPU, and none is visible"):
        profile.plan_job(["pdl_chain"])


def test_the_workloads_are_listed_with_what_is_wrong_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workloads.OWN, "broken", "no_such_module_anywhere")

    found = workloads.list_workloads()

    text = workloads_text(found)
    assert "fake              how a workload is recorded" in text
    assert "broken            cannot be imported: No module named 'no_such_module_anywhere'" in text
    assert {row["name"] for row in json.loads(workloads_json(found))["rows"]} >= {"fake", "pdl_chain"}
    assert workloads_csv(found).startswith("name,module,shows,problem\n")
    with pytest.raises(CaptureError, match=r"broken .*cannot be imported"):
        workloads.find_workload("broken")


SAMPLE = Path(__file__).parents[1] / "sample_traces" / "pdl_chain_node.sqlite"


def run_command(*words: str) -> None:
    """The commands as the command line registers them, without its error handling; the fake nsys
    exports a real trace."""
    app = typer.Typer()
    cli_capture.register(app)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setenv("FAKE_NSYS_EXPORT", str(SAMPLE))
        app(list(words))
    assert not stop.value.code


def test_profile_leaves_a_workloads_own_options_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    run_command("profile", "fake", "--layers", "7", "--level", "node", "-o", "x.sqlite", "--size", "3")

    written = capsys.readouterr()
    assert "words --repeats 1 --layers 7 --size 3 --result" in written.err
    assert written.out.split()[:4] == ["trace", "x.sqlite", "sidecar", "x.tracekit.json"]
    assert "x.sqlite: NVIDIA H200" in written.out
    assert Path("x.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_profile_takes_any_command_line_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(
        "profile",
        "--no-untraced",
        "--level",
        "graph",
        "-o",
        "x.sqlite",
        "--",
        "echo",
        "--level",
        "node",
        "hi",
    )

    assert "--level node hi" in capsys.readouterr().err.splitlines()
