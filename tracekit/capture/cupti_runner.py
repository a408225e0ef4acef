"""Runs a Python program in this process with CUPTI's activity records switched on, and writes them as SQLite.

python -m tracekit.capture.cupti_runner OUT.sqlite node|graph -- script.py args | -m module args | -c code
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit.capture.cupti_rows import Collected
from tracekit.capture.cupti_tables import write_tables

BUFFER_BYTES = 32 * 1024 * 1024  # large, so that records are handed over seldom while the program runs
NVTX_VARIABLE = "NVTX_INJECTION64_PATH"
ALWAYS = ("DEVICE", "CONTEXT", "CONCURRENT_KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "DRIVER")
WHERE_POSSIBLE = ("MEMCPY2", "SYNCHRONIZATION", "MARKER")


def main(argv: list[str]) -> int:
    """Record the program after `--` and return its exit code; what was recorded is written in any case."""
    output, level, dashes, *program = argv
    if dashes != "--" or level not in ("node", "graph") or not program:
        raise SystemExit(__doc__)
    try:
        from cupti import cupti
    except ImportError as error:
        print(f"error: {error}: pip install cupti-python pyelftools", file=sys.stderr)
        return 1
    collected = _start(cupti, level)
    try:
        return _run(program)
    finally:
        _finish(cupti)
        write_tables(Path(output), collected.tables(level))
        if not collected.ranges:
            print("note: CUPTI delivered no NVTX ranges", file=sys.stderr)


def _start(cupti: Any, level: str) -> Collected:
    zero_ns = cupti.get_timestamp()
    _let_nvtx_report_to_cupti()
    with contextlib.suppress(cupti.cuptiError):
        cupti.set_thread_id_type(cupti.ActivityThreadIdType.SYSTEM)
    collected = Collected(zero_ns, _call_names(cupti))

    def on_records(records: list[Any]) -> None:
        try:
            for record in records:
                collected.add(record)
        except Exception:  # noqa: BLE001 - CUPTI's thread would swallow it
            traceback.print_exc()

    # node level: kernels of replays one by one; graph level: GRAPH_TRACE takes their place
    for name in ALWAYS + (("GRAPH_TRACE",) if level == "graph" else ()):
        cupti.activity_enable(cupti.ActivityKind[name])
    for name in WHERE_POSSIBLE:
        with contextlib.suppress(cupti.cuptiError):
            cupti.activity_enable(cupti.ActivityKind[name])
    cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), on_records)
    return collected


def _let_nvtx_report_to_cupti() -> None:
    """NVTX loads the library that this variable names at its first call: it must be the CUPTI in use."""
    found = re.search(r"\S*libcupti\.so\S*", Path("/proc/self/maps").read_text())
    if found:
        os.environ.setdefault(NVTX_VARIABLE, found.group())


def _call_names(cupti: Any) -> Callable[[bool, int], str]:
    @functools.cache
    def name_of(is_runtime: bool, number: int) -> str:
        domain = cupti.CallbackDomain.RUNTIME_API if is_runtime else cupti.CallbackDomain.DRIVER_API
        try:
            return str(cupti.get_callback_name(domain, number))
        except cupti.cuptiError:
            return f"call {number}"

    return name_of


def _finish(cupti: Any) -> None:
    with contextlib.suppress(Exception):
        from cuda.bindings import driver

        driver.cuCtxSynchronize()  # what still runs would be flushed without its end
    cupti.activity_flush_all(1)


def _run(program: list[str]) -> int:
    try:
        _run_program(program)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return int(stop.code or 0)
    except BaseException:  # noqa: BLE001 - the program's own failure: shown, and the records are kept
        traceback.print_exc()
        return 1
    return 0


def _run_program(program: list[str]) -> None:
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    elif program[0] == "-c":
        sys.argv = ["-c", *program[2:]]
        exec(program[1], {"__name__": "__main__"})
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
