"""Runs a program, passes its lines on as they come, and keeps the last ones for the error message."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tracekit.errors import CaptureError

Echo = Callable[[str], None]
TAIL_LINES = 15


@dataclass(frozen=True)
class Finished:
    """How a program ended: its exit code, its last lines, the wall time it took."""

    returncode: int
    tail: tuple[str, ...]
    wall_ns: int


def run_logged(
    argv: Sequence[str],
    echo: Echo,
    *,
    environment: Mapping[str, str] | None = None,
    keep: Callable[[str], bool] = bool,
) -> Finished:
    """Run `argv`, pass every line of its output that `keep` accepts to `echo`, and wait for its end.

    stdout and stderr come as one; a carriage return ends a line. Raises CaptureError where it cannot start.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    started_ns = time.perf_counter_ns()
    for line in (process := _start(argv, environment)).stdout or ():
        if keep(text := line.rstrip()):
            tail.append(text)
            echo(text)
    returncode = process.wait()
    return Finished(returncode, tuple(tail), time.perf_counter_ns() - started_ns)


def _start(argv: Sequence[str], environment: Mapping[str, str] | None) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            list(argv),
            env=None if environment is None else dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CaptureError(
            f"{argv[0]}: cannot be started ({error.strerror}); check the name and PATH"
        ) from None


def end_of_output(finished: Finished) -> str:
    """The program's last lines for a message: an empty string, or a colon and the lines."""
    return ":\n  " + "\n  ".join(finished.tail) if finished.tail else ""
