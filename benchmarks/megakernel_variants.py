"""Times the megakernel's variants beside the four modes of the PDL chain, in one process on one GPU.

The chain is timed before and after, so that a drifting clock shows. Prints a table; --out takes all of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tracekit.analysis.tasks import measure_tasks, read_tasks
from tracekit.report.tasks import PARTS
from workloads import gpu as gpus
from workloads import pdl_chain
from workloads.errors import WorkloadError, exit_on_error
from workloads.gpu import Gpu
from workloads.megakernel.gpu import Poll, Prefetch, Schedule, Signal
from workloads.megakernel.table import Counters, Deps
from workloads.megakernel.workload import Options, prepare, record_mode, time_mode, timeline_cost
from workloads.phases import Timing

PLAIN, INSTRUCTION, WEIGHTS = Prefetch.NONE, Prefetch.INSTRUCTION, Prefetch.WEIGHTS
BASE = Options(prefetch=(WEIGHTS,))
WIDE = replace(BASE, vector=4)  # four floats a thread
DATA = replace(BASE, signal=Signal.DATA, deps=Deps.BLOCK)
PUSH = replace(WIDE, blocks=16, signal=Signal.PUSH)
CLUSTER = replace(WIDE, blocks=16, signal=Signal.CLUSTER)
SHORT = 20  # layers of a timeline that is kept: small enough to hand on


@dataclass(frozen=True)
class Variant:
    """`predicted_us` a layer, written down before the run: NOTES.md says why."""

    name: str
    predicted_us: float
    options: Options


VARIANTS = (
    Variant("64 x 256, plain", 1.05, replace(BASE, prefetch=(PLAIN,))),
    Variant("64 x 256, instruction ahead", 1.00, replace(BASE, prefetch=(INSTRUCTION,))),
    Variant("64 x 256, weights ahead", 0.78, BASE),
    Variant("64 x 256, rotated data", 0.78, replace(BASE, rotate=1)),
    Variant("64 x 256, every warp polls", 0.90, replace(BASE, poll=Poll.EVERY)),
    Variant("64 x 256, overlapped polls", 1.05, replace(BASE, poll=Poll.OVERLAPPED)),
    Variant("64 x 256, counters side by side", 0.79, replace(BASE, counter_bytes=4)),
    Variant("64 x 256, a counter a block", 1.35, replace(BASE, counters=Counters.BLOCK, counter_bytes=4)),
    Variant("64 x 256, 128 workers", 0.80, replace(BASE, workers=128)),
    Variant("64 x 256, 132 workers", 0.81, replace(BASE, workers=132)),
    Variant("64 x 256, queue", 0.95, replace(BASE, schedule=Schedule.QUEUE)),
    Variant("64 x 256, queue, plain", 1.50, replace(BASE, schedule=Schedule.QUEUE, prefetch=(PLAIN,))),
    Variant("64 x 64 x 4, weights ahead", 0.77, WIDE),
    Variant("32 x 128 x 4, weights ahead", 0.79, replace(WIDE, blocks=32)),
    Variant("16 x 256 x 4, weights ahead", 0.82, replace(WIDE, blocks=16)),
    Variant("16 x 256 x 4, rotated data", 0.82, replace(WIDE, blocks=16, rotate=1)),
    Variant("16 x 256 x 4, plain", 1.16, replace(WIDE, blocks=16, prefetch=(PLAIN,))),
    Variant("16 x 1024, weights ahead", 0.88, replace(BASE, blocks=16)),
    Variant("8 x 512 x 4, weights ahead", 0.85, replace(WIDE, blocks=8)),
    Variant("block deps, plain", 1.07, replace(BASE, deps=Deps.BLOCK, prefetch=(PLAIN,))),
    Variant("block deps, weights ahead", 0.78, replace(BASE, deps=Deps.BLOCK)),
    Variant("block deps, rotated data", 0.80, replace(BASE, deps=Deps.BLOCK, rotate=1)),
    Variant("block deps, local waits skipped", 0.42, replace(BASE, deps=Deps.BLOCK, skip_local=True)),
    # without a table
    Variant("64 x 256, lean", 0.73, replace(BASE, signal=Signal.LEAN)),
    Variant("64 x 256, lean, weights late", 0.75, replace(BASE, signal=Signal.LEAN, prefetch=(PLAIN,))),
    Variant("64 x 64 x 4, lean", 0.72, replace(WIDE, signal=Signal.LEAN)),
    Variant("16 x 256 x 4, lean", 0.76, replace(WIDE, blocks=16, signal=Signal.LEAN)),
    Variant("64 x 256, a signal a warp", 0.90, replace(BASE, signal=Signal.WARPS)),
    Variant("64 x 64 x 4, a signal a warp", 0.72, replace(WIDE, signal=Signal.WARPS)),
    Variant("64 x 256, flags", 0.72, replace(BASE, signal=Signal.FLAGS)),
    Variant("64 x 256, flags side by side", 0.71, replace(BASE, signal=Signal.FLAGS, counter_bytes=4)),
    Variant("64 x 256, flags, rotated data", 0.72, replace(BASE, signal=Signal.FLAGS, rotate=1)),
    Variant("64 x 64 x 4, flags", 0.71, replace(WIDE, signal=Signal.FLAGS)),
    Variant("16 x 256 x 4, flags", 0.73, replace(WIDE, blocks=16, signal=Signal.FLAGS)),
    Variant("64 x 256, data", 0.42, DATA),
    Variant("64 x 256, data, 100 layers", 0.43, replace(DATA, layers=100)),
    Variant("64 x 256, data, rotated", 0.44, replace(DATA, rotate=1)),
    Variant("64 x 128 x 2, data", 0.42, replace(DATA, vector=2)),
    Variant("64 x 64 x 4, data, rotated", 0.44, replace(DATA, vector=4, rotate=1)),
    Variant("16 x 1024, cluster", 0.50, replace(CLUSTER, vector=1)),
    Variant("16 x 256 x 4, cluster", 0.42, CLUSTER),
    Variant("16 x 256 x 4, cluster, rotated", 0.44, replace(CLUSTER, rotate=1)),
    Variant("8 x 256 x 4, half the size, cluster", 0.40, replace(CLUSTER, blocks=8, size=8192, rotate=1)),
    Variant("16 x 1024, push, rotated", 0.35, replace(PUSH, vector=1, rotate=1)),
    Variant("16 x 256 x 4, push", 0.27, PUSH),
    Variant("16 x 256 x 4, push, 100 layers", 0.29, replace(PUSH, layers=100)),
    Variant("16 x 256 x 4, push, rotated", 0.28, replace(PUSH, rotate=1)),
    # once more: a drift since the first row shows
    Variant("64 x 256, plain (again)", 1.05, replace(BASE, prefetch=(PLAIN,))),
    Variant("64 x 256, weights ahead (again)", 0.78, BASE),
)
SUMMARISED = (
    "64 x 256, plain",
    "64 x 256, weights ahead",
    "64 x 256, lean",
    "64 x 256, flags",
    "64 x 256, data, rotated",
    "16 x 256 x 4, cluster, rotated",
    "16 x 256 x 4, push, rotated",
)


def main(
    out: Annotated[Path, typer.Option(help="Folder for variants.json, tasks_plain.json, tasks_best.json.")],
    repeats: Annotated[int, typer.Option(help="Timings a variant; the median counts.")] = 15,
) -> None:
    """Time everything, print a table, write the numbers."""

    def run() -> None:
        gpu = gpus.open_gpu()
        stream = gpus.import_cupy().cuda.Stream(non_blocking=True)
        chain = pdl_chain.Options(repeats=repeats)
        rows = [_chain_row(t, "first") for t in pdl_chain.run(chain).timings]
        rows += [_variant_row(gpu, stream, variant, repeats) for variant in VARIANTS]
        rows += [_chain_row(t, "again") for t in pdl_chain.run(chain).timings]
        best = _best_of_layers(rows)
        chosen = [v for v in VARIANTS if v.name in (*SUMMARISED, best.name)]
        summaries = [_summary(gpu, stream, variant) for variant in chosen]
        _keep_timeline(gpu, stream, VARIANTS[0], out / "tasks_plain.json")
        _keep_timeline(gpu, stream, best, out / "tasks_best.json")
        commands = [sample_command(v, name) for v, name in ((VARIANTS[0], "plain"), (best, "best"))]
        document = {"gpu": asdict(gpu), "rows": rows, "timeline": summaries}
        document |= {"best": best.name, "sample_commands": commands}
        (out / "variants.json").write_text(json.dumps(document, indent=1) + "\n")
        _print(rows, summaries, commands)

    exit_on_error(run)


def _best_of_layers(rows: list[dict[str, Any]]) -> Variant:
    """The fastest that waits as a kernel does: for a whole layer of full size, with data that moves."""
    times = {row["name"]: row.get("median_us", float("inf")) for row in rows}
    full = [v for v in VARIANTS if v.options.deps is Deps.LAYER and v.options.rotate]
    return min((v for v in full if v.options.size == BASE.size), key=lambda v: times[v.name])


def sample_command(variant: Variant, name: str) -> str:
    """How to record the variant's sample trace."""
    words = ["tracekit", "profile", "megakernel", "--level", "node", "-o", f"megakernel_{name}.sqlite"]
    chosen, usual = (asdict(o) for o in (replace(variant.options, layers=SHORT, timeline=True), Options()))
    for key, value in chosen.items():
        if key == "prefetch":
            words += [word for prefetch in value for word in ("--prefetch", str(prefetch))]
        elif value != usual[key]:
            option = f"--{key.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    return " ".join(words)


def _variant_row(gpu: Gpu, stream: Any, variant: Variant, repeats: int) -> dict[str, Any]:
    options = replace(variant.options, repeats=repeats)
    row: dict[str, Any] = {"name": variant.name, "predicted_us": variant.predicted_us}
    try:
        timing = time_mode(prepare(gpu, stream, options), options.prefetch[0])
    except WorkloadError as error:  # one variant that fails must not cost the others their turn
        return row | {"error": str(error)}
    return row | _figures(timing) | {"sm_clock_mhz": round(gpus.clock_mhz(gpu, stream, 2))}


def _chain_row(timing: Timing, when: str) -> dict[str, Any]:
    return {"name": f"{timing.mode} ({when})", "predicted_us": None, **_figures(timing)}


def _figures(timing: Timing) -> dict[str, Any]:
    layer_us = np.array(timing.pass_ns) / timing.kernels / 1e3
    return {
        "median_us": round(float(np.median(layer_us)), 4),
        "min_us": round(float(layer_us.min()), 4),
        "max_us": round(float(layer_us.max()), 4),
    }


def _summary(gpu: Gpu, stream: Any, variant: Variant) -> dict[str, Any]:
    """What the timeline costs, and the parts of the workers' time that it shows."""
    prefetch = variant.options.prefetch[0]
    try:
        setting = prepare(gpu, stream, variant.options)
        plain = time_mode(setting, prefetch)
        traced, document = record_mode(setting, prefetch)
    except WorkloadError as error:
        return {"name": variant.name, "error": str(error)}
    report = measure_tasks(read_tasks(document, variant.name))
    total_ns = {part: report.total_ns(part) for part in PARTS}
    (kind,) = report.kinds
    return {
        "name": variant.name,
        "added": round(timeline_cost(plain, traced), 4),
        "dropped": document["dropped"],
        "shares": {part: round(ns / sum(total_ns.values()), 4) for part, ns in total_ns.items()},
        "wait_ns": asdict(kind.wait_ns),
        "execute_ns": asdict(kind.execute_ns),
    }


def _keep_timeline(gpu: Gpu, stream: Any, variant: Variant, path: Path) -> None:
    try:
        setting = prepare(gpu, stream, replace(variant.options, layers=SHORT))
        _, document = record_mode(setting, variant.options.prefetch[0])
    except WorkloadError as error:
        print(f"no timeline of {variant.name}: {error}")
        return
    path.write_text(json.dumps(document) + "\n")


def _print(rows: list[dict[str, Any]], summaries: list[dict[str, Any]], commands: list[str]) -> None:
    print(f"\n{'us a layer':<36} predicted   median      min      max   clock, MHz")
    for row in rows:
        predicted = f"{row['predicted_us']:9.2f}" if row["predicted_us"] is not None else f"{'-':>9}"
        measured = row.get("error") or " ".join(f"{row[k]:8.3f}" for k in ("median_us", "min_us", "max_us"))
        print(f"{row['name']:<36} {predicted} {measured}   {row.get('sm_clock_mhz', '-')}")
    for one in summaries:
        print(f"timeline of {one['name']}: {one.get('error') or _summary_text(one)}")
    for command in commands:
        print(f"sample: {command}")


def _summary_text(one: dict[str, Any]) -> str:
    shares = ", ".join(f"{part} {share:.0%}" for part, share in one["shares"].items())
    return f"adds {one['added']:.1%}, {one['dropped']} records dropped; {shares}"


if __name__ == "__main__":
    typer.run(main)
