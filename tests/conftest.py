"""How the property tests run: the same inputs every time in CI, new ones at a desk and at night."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") and "TRACEKIT_FUZZ" not in os.environ:
    settings.load_profile("ci")
