"""How the fuzz tests run: 300 inputs in CI, TRACEKIT_FUZZ times as many at night, each in 10 s and 1 GB."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings

EXAMPLES = 300
FACTOR = int(os.environ.get("TRACEKIT_FUZZ", "1"))  # 34 is the nightly run
MOST_BYTES = 10**9
fuzzed = settings(
    max_examples=EXAMPLES * FACTOR,
    deadline=10_000,
    report_multiple_bugs=False,  # shrinking several takes minutes
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,  # files are written anew for every input
    ],
)


@contextmanager
def limited_memory() -> Iterator[None]:
    """Allow a gigabyte more than there is now; `tracekit` says in one line when that is too little."""
    statm = Path("/proc/self/statm")
    if not statm.exists():  # not on Linux
        yield
        return
    now = int(statm.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
