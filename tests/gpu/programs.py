"""Runs workloads as a user does, in their own process, and reads what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run_workload(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Run `python -m workloads.NAME`; its result file, or an assertion with its output."""
    result = folder / "result.json"
    answer = subprocess.run(
        [sys.executable, "-m", f"workloads.{name}", *options, "--result", str(result)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    print(answer.stdout)
    document: dict[str, Any] = json.loads(result.read_text())
    return document


def period_ns(result: dict[str, Any], mode: str) -> float:
    """The median time of one layer in a mode."""
    (timing,) = (row for row in result["timings"] if row["mode"] == mode)
    return float(sorted(timing["pass_ns"])[len(timing["pass_ns"]) // 2] / timing["kernels"])
