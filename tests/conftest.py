"""How the property tests run: the same inputs every time in CI, new ones at a desk and at night."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

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
