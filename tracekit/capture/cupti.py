"""Records a Python program with CUPTI in its own process, where there is no nsys: the same SQLite tables."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracekit.capture.process import Echo, Finished, end_of_output, run_logged
from tracekit.errors import CaptureError

RUNNER = "tracekit.capture.cupti_runner"


def record(
    command: Sequence[str],
    graph_level: str,
    output: Path,
    echo: Echo,
    *,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Record a Python program into the SQLite file `output`; programs that it starts are not recorded.

    A program that fails keeps what was recorded. Raises CaptureError.
    """
    interpreter, program = python_program(command)
    argv = [interpreter, "-m", RUNNER, str(output), graph_level, "--", *program]
    output.unlink(missing_ok=True)
    finished = run_logged(argv, echo, environment=environment)
    if finished.returncode:
        kept = f"; what was recorded is kept as {output}" if output.exists() else "; nothing was recorded"
        raise CaptureError(
            f"the program failed under CUPTI with exit code {finished.returncode}{kept}"
            f"{end_of_output(finished)}"
        )
    if not output.exists():
        raise CaptureError(f"CUPTI recorded nothing: the program ended at once{end_of_output(finished)}")
    return finished


def python_program(command: Sequence[str]) -> tuple[str, list[str]]:
    """The interpreter, and what it is given: `python x.py`, `python -m x`, `x.py`, or a #! script.

    Raises CaptureError for a program that is not Python.
    """
    first, *rest = command
    if Path(first).name.startswith("python"):
        if rest and (rest[0] in ("-m", "-c") or not rest[0].startswith("-")):
            return first, rest
        raise CaptureError(
            f"{' '.join(command)}: the cupti backend takes `python x.py`, `python -m x`, `x.py`"
        )
    if first.endswith(".py"):
        return sys.executable, [first, *rest]
    path = shutil.which(first)
    interpreter = _shebang_python(Path(path)) if path else None
    if path is None or interpreter is None:
        raise CaptureError(
            f"{first}: the cupti backend records Python programs only; install nsys for others"
        )
    return interpreter, [path, *rest]


def _shebang_python(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            line = file.readline(1024).decode(errors="replace")
    except OSError:
        return None
    words = line[2:].split() if line.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [shutil.which(word) or word for word in words[1:] if not word.startswith("-")]
    if words and os.access(words[0], os.X_OK) and Path(words[0]).name.startswith("python"):
        return words[0]
    return None
