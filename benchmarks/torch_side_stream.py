"""What a kernel boundary in a PyTorch CUDA graph costs before and after a side stream has launched kernels.

PyTorch's recipe for CUDA graphs warms up on a side stream. Times a graph of 200 multiplications that was
captured without one, then lets the default stream and side streams launch kernels, and times it again each
time. Prints one JSON line: nanoseconds a kernel, median of 7 timings of 20 replays.

    python benchmarks/torch_side_stream.py --size 16384
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import torch
import typer

KERNELS, REPLAYS, REPEATS = 200, 20, 7


def main(size: Annotated[int, typer.Option(help="Floats that a kernel reads and writes.")] = 16_384) -> None:
    """Capture, time, let other streams work, time again."""
    values = torch.zeros(size, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _multiply(values, KERNELS)
    rows = {"fresh": _time_ns(graph)}
    _multiply(values, 3000)
    rows["default stream: 3000 kernels"] = _time_ns(graph)
    for side in range(1, 4):
        _on_side_stream(values, 1)
        rows[f"side stream {side}: 1 kernel"] = _time_ns(graph)
    for side in range(4, 7):
        _on_side_stream(values, KERNELS)
        rows[f"side stream {side}: {KERNELS} kernels"] = _time_ns(graph)
    print(
        json.dumps(
            {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "size": size, "ns": rows}
        )
    )


def _multiply(values: Any, times: int) -> None:
    for _ in range(times):
        values.mul_(1.0)


def _on_side_stream(values: Any, kernels: int) -> None:
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        _multiply(values, kernels)
    torch.cuda.synchronize()


def _time_ns(graph: Any) -> float:
    graph.replay()
    times = []
    for _ in range(REPEATS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(REPLAYS):
            graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e6 / REPLAYS / KERNELS)
    return round(float(np.median(times)), 1)


if __name__ == "__main__":
    typer.run(main)
