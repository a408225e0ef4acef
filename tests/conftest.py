"""How the property tests run: the same inputs every time in CI, new ones at a desk and at night."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

settings.register_profile("ci", derandomize=True)
# `make mutants`: a mutant only has to fail once, and the failing example is not read.
settings.register_profile(
    "mutation",
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
if os.environ.get("CI") and "TRACEKIT_FUZZ" not in os.environ:
    settings.load_profile("ci")
