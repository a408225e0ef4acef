"""Write a made-up trace of PyTorch's profiler of any size; as in real ones, most events are the host's.

python -m benchmarks.make_kineto OUT.json MEGABYTES
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BASE_NS = 1_767_189_312_000_000_000
HEAD: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000}],
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": BASE_NS,
}
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, {}>(int, float*)"


def write_trace(path: Path, size_bytes: int) -> int:
    """Write about so many bytes; returns the number of kernels. Each has a launch and eight host events."""
    count = 0
    with path.open("w") as file:
        file.write(json.dumps(HEAD)[:-1] + ', "traceEvents": [\n')
        file.write(_spelled(_event("user_annotation", "decode", 7, 0, 1e9, {"External id": 1})))
        while file.tell() < size_bytes:
            for event in _launch(count):
                file.write(",\n" + _spelled(event))
            count += 1
        file.write('\n], "traceName": "synthetic.json"}')
    return count


def _launch(i: int) -> list[dict[str, Any]]:
    at = 1_000_000 + 9_337 * i
    shape = {
        "Input Dims": [[1, 4096], [4096, 4096]],
        "Input type": ["c10::BFloat16"] * 2,
        "Concrete Inputs": [],
    }
    python = {"Python parent id": i, "Python id": i + 1, "Ev Idx": i}
    ids = {"External id": i, "correlation": i}
    place = {"device": 0, "context": 1, "stream": 7, "grid": [132, 1, 1], "block": [256, 1, 1]}
    calls = [f"torch/nn/modules/module.py({n}): forward" for n in range(5)]
    operators = [f"aten::op_{n}" for n in range(3)]
    return [
        *(_event("python_function", name, 7, at, 8.5, python) for name in calls),
        *(_event("cpu_op", name, 7, at + 500, 6.25, shape | {"Ev Idx": i}) for name in operators),
        _event("cuda_runtime", "cudaLaunchKernel", 7, at + 1_000, 4.125, ids | {"cbid": 211}),
        _event("kernel", KERNEL.format(i % 40), 0, at + 7_000, 2.08, ids | place),
    ]


def _event(category: str, name: str, pid: int, at_ns: int, *rest: Any) -> dict[str, Any]:
    dur, args = rest
    ts = f"{1_365_627_862_000 + at_ns // 1000}.{at_ns % 1000:03}"
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": 7,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def _spelled(event: dict[str, Any]) -> str:
    return json.dumps(event, indent=2).replace(f'"{event["ts"]}"', event["ts"])


if __name__ == "__main__":
    print(f"{write_trace(Path(sys.argv[1]), int(float(sys.argv[2]) * 1e6)):,} kernels")
