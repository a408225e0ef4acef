"""How the property tests run (in CI the same inputs every time), and that no test changes a trace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

PROJECT = Path(__file__).parents[1]
TRACES = (PROJECT / "sample_traces", PROJECT.parent / "shared/traces", PROJECT.parent / "shared/corpus")

# No deadline: a busy machine is no failure, and most properties write and read a file.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
# `make mutants`: a mutant only has to fail once, and the failing example is not read.
settings.register_profile(
    "mutation",
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("default")
if os.environ.get("CI") and "TRACEKIT_FUZZ" not in os.environ:
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def _traces_are_left_alone() -> Iterator[None]:
    """Every recording at hand is the same after the last test as before the first, with nothing beside it."""
    before = _digests()
    yield
    assert _digests() == before


def _digests() -> dict[Path, str]:
    files = [path for folder in TRACES for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def a_gigabyte_more() -> Iterator[None]:
    """No more memory than a gigabyte beyond what is in use: for inputs that may claim any size."""
    from tests.fuzzing import limited_memory  # its settings are made of the profile loaded above

    with limited_memory():
        yield
