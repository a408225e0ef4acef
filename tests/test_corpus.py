"""Every real export at hand: `gaps --json` equals the plain reference, or gives the right error."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.reference import Reference, open_reference
from tests.run import GROUPINGS, differences, gaps, run

SHARED = Path(__file__).parents[2] / "shared"
SAMPLES = Path(__file__).parents[1] / "sample_traces"
ERRORS = {
    "lfs_pointer.sqlite": "git lfs pull",
    "v3.0.0_nvtx_without_cuda.sqlite": "only NVTX ranges",
    "v3.1.7_calls_without_kernels.sqlite": "no GPU activity",
    "killed_before_flush.sqlite": "no GPU activity",
}
FOLDERS = (SAMPLES, SHARED / "traces", SHARED / "corpus")
FILES = {path.name: path for folder in FOLDERS for path in sorted(folder.rglob("*.sqlite"))}
READABLE = [path for name, path in FILES.items() if name not in ERRORS]
BROKEN = [path for name, path in FILES.items() if name in ERRORS]


@cache
def reference_of(path: Path) -> Reference:
    return open_reference(path)


@pytest.mark.parametrize("by", GROUPINGS)
@pytest.mark.parametrize("path", READABLE, ids=lambda path: path.name)
def test_gaps_equal_the_reference(path: Path, by: str) -> None:
    assert differences(gaps(path, by), reference_of(path).document(path.name, by)) == []


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.name)
def test_what_cannot_be_measured_says_why(path: Path) -> None:
    outcome = run("gaps", path, "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert ERRORS[path.name] in outcome.err
    assert outcome.err.count("\n") == 1
