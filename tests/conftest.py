"""Hypothesis profiles; one is chosen with `--hypothesis-profile=NAME`."""

from __future__ import annotations

from hypothesis import Phase, settings

# `make mutants`: a mutant only has to fail once, and the failing example is not read.
settings.register_profile(
    "mutation",
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
