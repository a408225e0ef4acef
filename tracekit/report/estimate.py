"""Estimates as text, JSON and CSV: plain rows first, then the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.decode.estimate import GapEstimate, StepEstimate, WhatIf
from tracekit.units import format_bytes

FORMAT = "tracekit.estimate/1"


@dataclass(frozen=True)
class Table:
    """A title, column heads, and rows of text; the first column is set left, the others right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tabulate_steps(estimates: Sequence[StepEstimate]) -> Table:
    """The handbook's table: data + n x g, and the share of gaps."""
    gaps = tuple(f"g = {gap.gap_ns / 1e3:g} us" for gap in estimates[0].gaps)
    return Table(
        "A decode step, data + n x g (in brackets the share of gaps)",
        ("step", "kernels", "data", "one by one", *gaps),
        tuple(_step_row(estimate) for estimate in estimates),
    )


def tabulate_max_form(estimates: Sequence[StepEstimate]) -> Table:
    """The same under max(data, n x g): the shorter of the two hides behind the longer."""
    gaps = tuple(f"g = {gap.gap_ns / 1e3:g} us" for gap in estimates[0].gaps)
    rows = (
        (name_step(estimate), *(_cell(gap.max_ns, gap.max_gap_share) for gap in estimate.gaps))
        for estimate in estimates
    )
    return Table("The same if gaps hide behind data, max(data, n x g)", ("step", *gaps), tuple(rows))


def tabulate_kernels(estimate: StepEstimate) -> Table:
    """The step's kernels in order, equal neighbouring layers written once as `0-27`."""
    rows: list[tuple[str, ...]] = []
    layers = estimate.step.model.layers
    for timed in estimate.kernels:
        kernel = timed.kernel
        if kernel.layer:
            continue  # every layer is like layer 0
        parts = (kernel.weight_bytes, kernel.kv_bytes, kernel.activation_bytes, kernel.total_bytes)
        where = "-" if kernel.layer is None else f"0-{layers - 1}"
        rows.append((kernel.name, where, *(format_bytes(part) for part in parts), _us(timed.data_ns, 2)))
    heads = ("kernel", "layers", "weights", "KV cache", "activations", "bytes", "time")
    return Table(f"Kernels of {name_step(estimate)}", heads, tuple(rows))


def tabulate_what_ifs(what_ifs: Sequence[WhatIf], gap_ns: float) -> Table:
    """Each change with the step before and after it, and what it assumes."""
    rows = ((w.name, _us(w.before_ns), _us(w.after_ns), _change(w.before_ns, w.after_ns)) for w in what_ifs)
    return Table(f"What if, at g = {gap_ns / 1e3:g} us", ("change", "before", "after", ""), tuple(rows))


def name_step(estimate: StepEstimate) -> str:
    """`Qwen3-0.6B b=1 ctx=1024`, and whatever is not the handbook's."""
    step = estimate.step
    extra = (
        (step.weight_dtype != "bf16", step.weight_dtype),
        (step.kv_dtype != "bf16", f"kv={step.kv_dtype}"),
        (step.tp > 1, f"tp={step.tp}"),
        (step.fusion != "handbook", step.fusion),
    )
    words = (
        step.model.name,
        f"b={step.batch}",
        f"ctx={step.context}",
        *(word for shown, word in extra if shown),
    )
    return " ".join(words)


def short_kernels_sentence(estimate: StepEstimate) -> str:
    """How many kernels are shorter than a microsecond: next to g, that is what the table turns on."""
    short, kernels = estimate.short, len(estimate.kernels)
    return (
        f"{name_step(estimate)}: {short.count} of {kernels} kernels need less than {_us(short.limit_ns)} "
        f"for their data, {_us(short.mean_ns, 2)} on average"
    )


def list_assumptions(estimates: Sequence[StepEstimate], what_ifs: Sequence[WhatIf] = ()) -> tuple[str, ...]:
    """What the estimates and the what-ifs take for granted, each sentence once."""
    sentences = [sentence for estimate in estimates for sentence in estimate.assumptions]
    sentences += [f"{what_if.name}: {what_if.assumption}" for what_if in what_ifs]
    return tuple(dict.fromkeys(sentences))


def render_text(
    estimates: Sequence[StepEstimate], what_ifs: Sequence[WhatIf] = (), *, kernels: bool = False
) -> str:
    """Tables, the sentence about short kernels (of the first step), the assumptions."""
    parts = [render_table(tabulate_steps(estimates)), short_kernels_sentence(estimates[0])]
    parts.append(render_table(tabulate_max_form(estimates)))
    if kernels:
        parts += [render_table(tabulate_kernels(estimate)) for estimate in estimates]
    if what_ifs:
        parts.append(render_table(tabulate_what_ifs(what_ifs, estimates[0].gaps[0].gap_ns)))
    assumptions = (f"  - {sentence}" for sentence in list_assumptions(estimates, what_ifs))
    parts.append("\n".join(("Assumptions", *assumptions)))
    return "\n\n".join(parts)


def render_table(table: Table) -> str:
    """Columns two blanks apart."""
    lines = (table.heads, *table.rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.heads))]
    return "\n".join((table.title, *(_align(line, widths) for line in lines)))


def render_json(
    estimates: Sequence[StepEstimate], what_ifs: Sequence[WhatIf] = (), *, kernels: bool = False
) -> str:
    """One document of format tracekit.estimate/1."""
    return json.dumps(estimate_document(estimates, what_ifs, kernels=kernels), indent=1)


def estimate_document(
    estimates: Sequence[StepEstimate], what_ifs: Sequence[WhatIf] = (), *, kernels: bool = False
) -> dict[str, Any]:
    """The estimates as plain data; times in nanoseconds, a what-if's g is the first.

    `kernel_list` is null unless `kernels`.
    """
    return {
        "format": FORMAT,
        "steps": [_step_document(estimate, kernels) for estimate in estimates],
        "what_if": [
            {"name": w.name, "before_ns": w.before_ns, "after_ns": w.after_ns, "assumption": w.assumption}
            for w in what_ifs
        ],
    }


def render_csv(estimates: Sequence[StepEstimate]) -> str:
    """One line for each step and g; times in nanoseconds."""
    heads = (
        "model batch context weight_dtype kv_dtype tp fusion gpu bandwidth_bytes_per_s efficiency kernels "
        "data_bytes data_ns launched_ns gap_ns additive_ns additive_gap_share max_ns max_gap_share"
    )
    rows = (_csv_row(estimate, gap) for estimate in estimates for gap in estimate.gaps)
    return write_csv(tuple(heads.split()), rows)


def render_kernels_csv(estimates: Sequence[StepEstimate]) -> str:
    """One line for each kernel of each step, in the order in which they run."""
    heads = ("step", "kernel", "layer", "weight_bytes", "kv_bytes", "activation_bytes", "data_ns")
    rows = (
        (
            *(
                name_step(estimate),
                timed.kernel.name,
                "" if timed.kernel.layer is None else timed.kernel.layer,
            ),
            *(timed.kernel.weight_bytes, timed.kernel.kv_bytes, timed.kernel.activation_bytes, timed.data_ns),
        )
        for estimate in estimates
        for timed in estimate.kernels
    )
    return write_csv(heads, rows)


def _step_row(estimate: StepEstimate) -> tuple[str, ...]:
    return (
        name_step(estimate),
        str(len(estimate.kernels)),
        _us(estimate.data_ns),
        _us(estimate.launched_ns),
        *(_cell(gap.additive_ns, gap.additive_gap_share) for gap in estimate.gaps),
    )


def _step_document(estimate: StepEstimate, kernels: bool) -> dict[str, Any]:
    step, machine = estimate.step, estimate.machine
    return {
        "model": step.model.name,
        "model_source": step.model.source,
        **{
            key: getattr(step, key)
            for key in ("batch", "context", "weight_dtype", "kv_dtype", "tp", "fusion")
        },
        "gpu": machine.gpu.name,
        "peak_bandwidth_bytes_per_s": machine.gpu.bandwidth_bytes_per_s,
        "efficiency": machine.efficiency,
        "launch_ns": machine.launch_ns,
        "kernels": len(estimate.kernels),
        "data_bytes": estimate.data_bytes,
        "data_ns": estimate.data_ns,
        "launched_ns": estimate.launched_ns,
        "gaps": [vars(gap) for gap in estimate.gaps],
        "short_kernels": vars(estimate.short),
        "kernel_list": [vars(k.kernel) | {"data_ns": k.data_ns} for k in estimate.kernels]
        if kernels
        else None,
        "assumptions": list(estimate.assumptions),
    }


def _csv_row(estimate: StepEstimate, gap: GapEstimate) -> tuple[object, ...]:
    step, machine = estimate.step, estimate.machine
    return (
        *(step.model.name, step.batch, step.context, step.weight_dtype, step.kv_dtype, step.tp, step.fusion),
        *(machine.gpu.name, machine.gpu.bandwidth_bytes_per_s, machine.efficiency, len(estimate.kernels)),
        *(estimate.data_bytes, estimate.data_ns, estimate.launched_ns),
        *(gap.gap_ns, gap.additive_ns, gap.additive_gap_share, gap.max_ns, gap.max_gap_share),
    )


def write_csv(heads: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Rows under their heads, lines ended by a line feed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return text.getvalue()


def _align(line: tuple[str, ...], widths: list[int]) -> str:
    first, *others = line
    right = (text.rjust(width) for text, width in zip(others, widths[1:], strict=True))
    return "  ".join((first.ljust(widths[0]), *right)).rstrip()


def _us(value_ns: float, decimals: int = 0) -> str:
    """Microseconds throughout: a table of one unit can be read down its columns."""
    return f"{value_ns / 1e3:.{decimals}f} us"


def _cell(step_ns: float, share: float) -> str:
    return f"{_us(step_ns)} ({100 * share:.0f} %)"


def _change(before_ns: float, after_ns: float) -> str:
    return f"{100 * (after_ns - before_ns) / before_ns:+.0f} %" if before_ns else "-"
