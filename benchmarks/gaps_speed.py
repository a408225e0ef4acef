"""Time `tracekit gaps --by pair --json` on a file of N kernels, N calls and N/100 ranges.

Prints wall time and peak memory of the whole command (interpreter and imports included), kernels a
second, and the ratio to SQLite's own scan of two columns, all in the same run. The file is written
once into benchmarks/data/ and is in the page cache when the command runs.

    python -m benchmarks.gaps_speed [kernels] [repeats]
"""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.make_trace import write_trace

DATA = Path(__file__).parent / "data"
SCAN = "SELECT count(*), sum(start) FROM CUPTI_ACTIVITY_KIND_KERNEL"


def run_gaps(path: Path) -> tuple[float, float]:
    """Seconds and peak bytes of one run of the command."""
    command = [sys.executable, "-m", "tracekit", "gaps", str(path), "--by", "pair", "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"the command failed with status {status}")
    return seconds, usage.ru_maxrss * 1024.0


def run_scan(path: Path) -> float:
    """Seconds SQLite needs to read the kernels' start column."""
    start = time.perf_counter()
    with sqlite3.connect(path) as db:
        db.execute(SCAN).fetchone()
    return time.perf_counter() - start


def main(kernels: int = 1_000_000, repeats: int = 7) -> None:
    """Make the file if it is not there, run, print."""
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{kernels}.sqlite"
    if not path.exists():
        write_trace(path, kernels, kernels // 100)
    run_gaps(path)  # bytecode and page cache
    runs = [run_gaps(path) for _ in range(repeats)]
    seconds = sorted(s for s, _ in runs)
    scan = statistics.median(run_scan(path) for _ in range(repeats))
    median, peak = statistics.median(seconds), max(p for _, p in runs)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {repeats} runs")
    print(f"{kernels:,} kernels: median {median:.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})")
    print(f"{kernels / median:,.0f} kernels/s; peak {peak / 1e6:.0f} MB, {peak / kernels:.0f} bytes a kernel")
    print(f"SQLite's scan of one column: {scan:.2f} s; ratio {median / scan:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
