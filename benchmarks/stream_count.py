"""What a kernel boundary in a graph costs after the process has worked on further streams.

Times the two graphs of the PDL chain, on one stream, after each of several other streams has done some work
and is idle again. Prints one JSON line: nanoseconds a kernel by the number of streams used so far.

    python -m benchmarks.stream_count --work chain
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
import typer

from workloads import gpu as gpus
from workloads import pdl_chain
from workloads.errors import exit_on_error
from workloads.phases import Plan, time_phase

OPTIONS = pdl_chain.Options()
MODES = ("graph", "graph+pdl")


class Work(StrEnum):
    """What each further stream does, once."""

    CHAIN = "chain"  # 200 kernels
    KERNEL = "kernel"  # one
    MEMSET = "memset"
    COPY = "copy"  # to the host


def main(
    work: Annotated[Work, typer.Option(help="What each further stream does.")] = Work.CHAIN,
    streams: Annotated[int, typer.Option(help="Streams in all.")] = 6,
) -> None:
    """Time, let one more stream work, time again."""

    def run() -> None:
        gpu = gpus.open_gpu()
        cuda = gpus.import_cupy().cuda
        stream = cuda.Stream(non_blocking=True)
        chain = pdl_chain.upload(gpu, OPTIONS, pdl_chain.make_numbers(OPTIONS))
        replays = {mode: _replay(chain, stream, pdl="pdl" in mode) for mode in MODES}
        gpus.clock_mhz(gpu, stream, 200)
        rows = [_row(replays, stream, 1)]
        for used in range(2, streams + 1):
            _work(work, chain, cuda.Stream(non_blocking=True))
            rows.append(_row(replays, stream, used))
        connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
        print(json.dumps({"gpu": gpu.name, "work": work, "connections": connections, "rows": rows}))

    exit_on_error(run)


def _replay(chain: pdl_chain.Chain, stream: Any, *, pdl: bool) -> Callable[[], None]:
    enqueue = gpus.chain_launcher(chain.launches, stream, pdl=pdl)
    return gpus.graph_launcher(gpus.capture_graph(enqueue, stream, OPTIONS.layers), stream)


def _work(work: Work, chain: pdl_chain.Chain, stream: Any) -> None:
    buffer = chain.buffers[0]
    if work is Work.COPY:
        buffer.get(stream=stream)
    elif work is Work.MEMSET:
        buffer.data.memset_async(0, buffer.nbytes, stream)
    else:
        kernels = len(chain.launches) if work is Work.CHAIN else 1
        gpus.chain_launcher(chain.launches[:kernels], stream, pdl=False)()
    stream.synchronize()


def _row(replays: dict[str, Callable[[], None]], stream: Any, streams: int) -> dict[str, float]:
    plan = Plan(OPTIONS.layers, OPTIONS.forwards, OPTIONS.repeats)
    timings = {mode: time_phase(mode, replay, stream, plan) for mode, replay in replays.items()}
    medians = {mode: float(np.median(t.pass_ns)) / OPTIONS.layers for mode, t in timings.items()}
    return {"streams": streams} | {mode: round(ns, 1) for mode, ns in medians.items()}


if __name__ == "__main__":
    typer.run(main)
