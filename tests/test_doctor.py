"""What the doctor finds on a machine with nothing, and on one that nvidia-smi describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_nsys import empty_path, write_nsys, write_program
from tracekit.capture import doctor
from tracekit.capture.doctor import examine, visible_gpus
from tracekit.capture.text import doctor_csv, doctor_json, doctor_text

SMI = """\
#!/bin/sh
echo "NVIDIA H200, 580.159.04, 9.0, 345, 3201"
echo "NVIDIA H200, 580.159.04, 9.0, [N/A], 3201"
"""


def test_a_machine_with_nothing_gets_advice_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "cuda_version", lambda: None)

    report = examine(empty_path(tmp_path), tmp_path)

    assert not report.can_record
    missing = {finding.name for finding in report.missing()}
    assert {"GPU", "driver", "PDL", "nsys"} <= missing
    assert all(finding.advice for finding in report.missing())


def test_the_gpus_of_nvidia_smi_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cuda_version", lambda: "13.0")
    write_program(tmp_path / "bin/nvidia-smi", SMI)
    nsys = write_nsys(tmp_path)
    environment = {"PATH": str(tmp_path / "bin"), "TRACEKIT_NSYS": str(nsys)}

    found = {finding.name: finding.found for finding in examine(environment, tmp_path).findings}

    assert found["GPU"] == "NVIDIA H200, NVIDIA H200 (compute capability 9.0)"
    assert found["driver"] == "580.159.04"
    assert found["CUDA"] == "13.0"
    assert found["PDL"] == "yes"
    assert (found["nsys"] or "").startswith("2025.3.2.474, ")
    assert [gpu.sm_clock_mhz for gpu in visible_gpus(environment)] == [345.0, None]


def test_a_gpu_before_hopper_has_no_pdl(tmp_path: Path) -> None:
    write_program(tmp_path / "bin/nvidia-smi", '#!/bin/sh\necho "NVIDIA A100, 580.1, 8.0, 210, 1215"\n')

    report = examine({"PATH": str(tmp_path / "bin")}, tmp_path)

    (pdl,) = (finding for finding in report.findings if finding.name == "PDL")
    assert pdl.found is None
    assert pdl.advice == "needs compute capability 9.0, this GPU has 8.0"


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho No devices were found\n"])
def test_an_nvidia_smi_that_fails_shows_no_gpu(tmp_path: Path, script: str) -> None:
    write_program(tmp_path / "bin/nvidia-smi", script)

    assert visible_gpus({"PATH": str(tmp_path / "bin")}) == ()


def test_the_three_renderings_hold_every_finding(tmp_path: Path) -> None:
    report = examine(empty_path(tmp_path), tmp_path)
    names = [finding.name for finding in report.findings]

    assert [line.split()[0] for line in doctor_text(report).splitlines()[:-1]] == names
    assert [row["name"] for row in json.loads(doctor_json(report))["findings"]] == names
    assert len(doctor_csv(report).splitlines()) == len(names) + 1
