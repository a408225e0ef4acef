"""What a workload tells its user: one line on stderr, exit 1."""

from __future__ import annotations

import sys
from collections.abc import Callable


class WorkloadError(Exception):
    """The workload cannot run here: the message says what is missing and what to do."""


class WrongResultError(WorkloadError):
    """A result that differs from NumPy's; the message names the first wrong element."""


def exit_on_error(run: Callable[[], None]) -> None:
    """Call `run`; a WorkloadError, or an error of CUDA, becomes one line on stderr and exit code 1."""
    try:
        run()
    except WorkloadError as error:
        _exit_with(str(error))
    except Exception as error:
        # CuPy's errors cannot be named here: importing it may be what failed
        if not type(error).__module__.startswith("cupy"):
            raise
        _exit_with(f"CUDA failed: {' '.join(str(error).split())}")


def _exit_with(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)
