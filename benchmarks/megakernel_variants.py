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

from workloads import gpu as gpus
from workloads import pdl_chain
from workloads.errors import WorkloadError, exit_on_error
from workloads.gpu import Gpu
from workloads.megakernel.gpu import Poll, Prefetch, Schedule
from workloads.megakernel.table import Counters, Deps
from workloads.megakernel.workload import MODE_NAMES, Options, prepare, record_mode, time_mode, timeline_cost
from workloads.phases import Timing

PLAIN, INSTRUCTION, WEIGHTS = Prefetch.NONE, Prefetch.INSTRUCTION, Prefetch.WEIGHTS
BASE = Options(prefetch=(WEIGHTS,))
WIDE = replace(BASE, vector=4)  # four floats a thread


@dataclass(frozen=True)
class Variant:
    """`predicted_us` a layer, written down before the first run: NOTES.md says why."""

    name: str
    predicted_us: float
    options: Options


VARIANTS = (
    Variant("64 x 256, plain", 1.05, replace(BASE, prefetch=(PLAIN,))),
    Variant("64 x 256, instruction ahead", 0.92, replace(BASE, prefetch=(INSTRUCTION,))),
    Variant("64 x 256, weights ahead", 0.72, BASE),
    Variant("64 x 256, rotated data", 0.72, replace(BASE, rotate=1)),
    Variant("64 x 256, every warp polls", 0.80, replace(BASE, poll=Poll.EVERY)),
    Variant("64 x 256, overlapped polls", 0.66, replace(BASE, poll=Poll.OVERLAPPED)),
    Variant("64 x 256, counters side by side", 0.73, replace(BASE, counter_bytes=4)),
    Variant("64 x 256, a counter a block", 0.74, replace(BASE, counters=Counters.BLOCK, counter_bytes=4)),
    Variant("64 x 256, 128 workers", 0.73, replace(BASE, workers=128)),
    Variant("64 x 256, 132 workers", 0.74, replace(BASE, workers=132)),
    Variant("64 x 256, queue", 0.74, replace(BASE, schedule=Schedule.QUEUE)),
    Variant("64 x 256, queue, plain", 1.60, replace(BASE, schedule=Schedule.QUEUE, prefetch=(PLAIN,))),
    Variant("64 x 64 x 4, weights ahead", 0.68, WIDE),
    Variant("32 x 128 x 4, weights ahead", 0.64, replace(WIDE, blocks=32)),
    Variant("32 x 128 x 4, every warp polls", 0.64, replace(WIDE, blocks=32, poll=Poll.EVERY)),
    Variant("16 x 256 x 4, weights ahead", 0.62, replace(WIDE, blocks=16)),
    Variant("16 x 256 x 4, rotated data", 0.62, replace(WIDE, blocks=16, rotate=1)),
    Variant("16 x 256 x 4, overlapped polls", 0.58, replace(WIDE, blocks=16, poll=Poll.OVERLAPPED)),
    Variant("16 x 256 x 4, every warp polls", 0.63, replace(WIDE, blocks=16, poll=Poll.EVERY)),
    Variant("16 x 256 x 4, plain", 0.95, replace(WIDE, blocks=16, prefetch=(PLAIN,))),
    Variant("16 x 1024, weights ahead", 0.67, replace(BASE, blocks=16)),
    Variant("8 x 512 x 4, weights ahead", 0.62, replace(WIDE, blocks=8)),
    Variant("block deps, plain", 0.95, replace(BASE, deps=Deps.BLOCK, prefetch=(PLAIN,))),
    Variant("block deps, weights ahead", 0.55, replace(BASE, deps=Deps.BLOCK)),
    Variant("block deps, rotated data", 0.66, replace(BASE, deps=Deps.BLOCK, rotate=1)),
    Variant("block deps, local waits skipped", 0.22, replace(BASE, deps=Deps.BLOCK, skip_local=True)),
)
RECORDED = ("64 x 256, plain", "64 x 256, weights ahead", "16 x 256 x 4, weights ahead")


def main(
    out: Annotated[Path, typer.Option(help="Folder for variants.json and tasks_*.json.")],
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
        costs = [_record(gpu, stream, variant, out) for variant in VARIANTS if variant.name in RECORDED]
        document = {"gpu": asdict(gpu), "rows": rows, "timeline": costs}
        (out / "variants.json").write_text(json.dumps(document, indent=1) + "\n")
        _print(rows, costs)

    exit_on_error(run)


def _variant_row(gpu: Gpu, stream: Any, variant: Variant, repeats: int) -> dict[str, Any]:
    options = replace(variant.options, repeats=repeats)
    try:
        timing = time_mode(prepare(gpu, stream, options), options.prefetch[0])
    except WorkloadError as error:  # one variant that fails must not cost the others their turn
        return {"name": variant.name, "predicted_us": variant.predicted_us, "error": str(error)}
    return {"name": variant.name, "predicted_us": variant.predicted_us, **_figures(timing)}


def _chain_row(timing: Timing, when: str) -> dict[str, Any]:
    return {"name": f"{timing.mode} ({when})", "predicted_us": None, **_figures(timing)}


def _figures(timing: Timing) -> dict[str, Any]:
    layer_us = np.array(timing.pass_ns) / timing.kernels / 1e3
    return {
        "median_us": round(float(np.median(layer_us)), 4),
        "min_us": round(float(layer_us.min()), 4),
        "max_us": round(float(layer_us.max()), 4),
    }


def _record(gpu: Gpu, stream: Any, variant: Variant, out: Path) -> dict[str, Any]:
    """Time with and without the timeline, and write the records of one forward."""
    setting = prepare(gpu, stream, variant.options)
    prefetch = variant.options.prefetch[0]
    plain = time_mode(setting, prefetch)
    traced, document = record_mode(setting, prefetch)
    name = f"tasks_{variant.options.blocks}_{MODE_NAMES[prefetch].replace('+', '_')}.json"
    (out / name).write_text(json.dumps(document) + "\n")
    return {
        "name": variant.name,
        "file": name,
        "added": round(timeline_cost(plain, traced), 4),
        "dropped": document["dropped"],
    }


def _print(rows: list[dict[str, Any]], costs: list[dict[str, Any]]) -> None:
    print(f"\n{'us a layer':<36} predicted   median      min      max")
    for row in rows:
        predicted = f"{row['predicted_us']:9.2f}" if row["predicted_us"] is not None else f"{'-':>9}"
        measured = row.get("error") or " ".join(f"{row[k]:8.3f}" for k in ("median_us", "min_us", "max_us"))
        print(f"{row['name']:<36} {predicted} {measured}")
    for cost in costs:
        print(f"timeline of {cost['name']}: adds {cost['added']:.1%}, {cost['dropped']} records dropped")


if __name__ == "__main__":
    typer.run(main)
