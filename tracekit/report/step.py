"""A traced step and what is held against it, as text, JSON and CSV."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from tracekit.analysis.steps import PARTS
from tracekit.decode.classes import ClassRow
from tracekit.decode.estimate import StepEstimate, estimate_gap
from tracekit.decode.measured import MeasuredStep, Prediction
from tracekit.report.estimate import Table, estimate_document, render_table, tabulate_kernels, write_csv
from tracekit.report.names import printable, shorten
from tracekit.report.timeline_data import Prediction as StepPrediction
from tracekit.report.timeline_data import StepPanels
from tracekit.units import format_bytes, format_ns, format_share

MOST_UNMATCHED = 5
SPOKEN = {
    "kernel_ns": "kernels running",
    "copy_ns": "copies alone",
    "replay_ns": "white space inside replays",
    "head_ns": "head of the replay",
    "host_ns": "before launches: host",
    "call_ns": "before launches: launch call",
    "queued_ns": "before launches: queued",
    "unknown_ns": "before launches: unknown",
}


def step_text(step: MeasuredStep, *, kernels: bool = False) -> str:
    """The measured step: how many and how they spread, budget, classes, predictions, what-ifs."""
    parts = [_steps_sentence(step), render_table(tabulate_budget(step)), *_tracing_lines(step)]
    parts.append(render_table(tabulate_class_rows(step)))
    parts += [_more_kernels(step), _unmatched_names(step)]
    if step.predictions:
        parts.append(render_table(tabulate_predictions(step)))
    else:
        parts.append("No prediction: give --model (and --batch, --context) to say what bytes the step moves.")
    if kernels and step.estimate:
        parts.append(render_table(tabulate_kernels(step.estimate)))
    if step.what_ifs:
        parts.append(render_table(_tabulate_what_ifs(step)))
    assumptions = [*step.assumptions, *(step.estimate.assumptions if step.estimate else ())]
    assumptions += [f"{w.name}: {w.assumption}" for w in step.what_ifs]
    lines = [f"  - {sentence}" for sentence in dict.fromkeys(assumptions)]
    return "\n\n".join([part for part in parts if part] + ["\n".join(["Assumptions", *lines])])


def tabulate_budget(step: MeasuredStep) -> Table:
    """The typical step's span in parts that add up to it; beside each its spread over all steps."""
    budget = step.steps.typical.budget
    rows = []
    for part in PARTS:
        value = getattr(budget, part)
        every = np.array([getattr(s.budget, part) for s in step.steps.steps])
        if not every.any():
            continue
        low, high = np.percentile(every, [10, 90])
        label = SPOKEN[part]
        if part == "kernel_ns" and step.data_ns is not None:
            rows.append(("bytes at the GPU's bandwidth (estimated)", _ns(step.data_ns), "", "", ""))
            rows.append(("kernel time beyond that", _ns(value - step.data_ns), "", "", ""))
            label = "  together: kernels running"
        rows.append((label, _ns(value), format_share(value, budget.span_ns), _ns(low), _ns(high)))
    rows.append(("span of the step", _ns(budget.span_ns), format_share(1, 1), "", ""))
    return Table(
        "Where the typical step goes, in ns", ("", "typical step", "share", "p10", "p90"), tuple(rows)
    )


def tabulate_class_rows(step: MeasuredStep) -> Table:
    """Kernels by class: how many, what bytes the model expects, measured time and bandwidth reached."""
    total = sum(row.measured_ns for row in step.classes)
    rows = tuple(_class_cells(row, step.estimate, total) for row in step.classes)
    heads = ("class", "kernels", "listed", "bytes", "at bandwidth", "measured", "share", "reached")
    return Table("Kernels of the typical step by class", heads, rows)


def _class_cells(row: ClassRow, estimate: StepEstimate | None, total_ns: int) -> tuple[str, ...]:
    listed = size = time = reached = "-"
    if estimate is not None:
        listed = str(row.expected_kernels)
        if row.expected_bytes:
            size = format_bytes(row.expected_bytes)
            time = format_ns(estimate.machine.time_ns(row.expected_bytes))
            if row.measured_ns:
                reached = f"{row.expected_bytes / row.measured_ns:,.0f} GB/s"
    share = format_share(row.measured_ns, total_ns)
    return (row.row, str(row.kernels), listed, size, time, format_ns(row.measured_ns), share, reached)


def tabulate_predictions(step: MeasuredStep) -> Table:
    """Each reading of g with both forms and the error against the target."""
    rows = [
        (
            p.reading,
            "-" if p.kernels is None else str(p.kernels),
            format_ns(p.gap_ns),
            *_predicted(p.additive_ns, step.target_ns),
            *_predicted(p.max_ns, step.target_ns),
        )
        for p in step.predictions
    ]
    heads = ("reading of g", "n", "g", "data + n x g", "error", "max(data, n x g)", "error")
    return Table(f"Predicted against {step.target}, {format_ns(step.target_ns)}", heads, tuple(rows))


def step_json(step: MeasuredStep, *, kernels: bool = False) -> str:
    """One document of format tracekit.estimate/1 with the measured step under `measured`."""
    estimates = [step.estimate] if step.estimate else []
    document = estimate_document(estimates, kernels=kernels) | {"measured": step_document(step)}
    return json.dumps(document, indent=1, allow_nan=False)


def step_document(step: MeasuredStep) -> dict[str, Any]:
    """The measured step as plain data; all times in nanoseconds."""
    steps = step.steps
    spans, periods = steps.spans_ns, steps.periods_ns
    return {
        "source": steps.source,
        "steps": len(steps.steps),
        "skipped": steps.skipped,
        "recorded_in_part": steps.partial,
        "process": steps.process,
        "device": steps.device,
        "kernels": step.kernels,
        "span_ns": {name: float(np.percentile(spans, q)) for name, q in SPREAD.items()},
        "period_ns": {name: float(np.percentile(periods, q)) for name, q in SPREAD.items()}
        if len(periods)
        else None,
        "budget": asdict(steps.typical.budget),
        "budgets": [asdict(s.budget) for s in steps.steps],
        "data_ns": step.data_ns,
        "target": step.target,
        "target_ns": step.target_ns,
        "tracing": asdict(step.tracing) if step.tracing else None,
        "classes": [asdict(row) for row in step.classes],
        "other_ns": step.other_ns,
        "unmatched": [asdict(name) for name in step.unmatched],
        "predictions": [_prediction_document(p, step.target_ns) for p in step.predictions],
        "what_if": [asdict(w) for w in step.what_ifs],
        "assumptions": list(step.assumptions),
    }


def step_csv(step: MeasuredStep) -> str:
    """One line a step: its start, span, kernels and budget in nanoseconds."""
    heads = ("step", "start_ns", "kernels", "span_ns", *PARTS)
    rows = (
        (i, s.start_ns, len(s.kernels), s.budget.span_ns, *(getattr(s.budget, part) for part in PARTS))
        for i, s in enumerate(step.steps.steps)
    )
    return write_csv(heads, rows)


def step_panels(step: MeasuredStep, more: tuple[str, ...] = ()) -> StepPanels:
    """What the report page shows of the measured step: sentences, the budget, the prediction over g."""
    sentences = [_steps_sentence(step).replace("\n", " ")]
    sentences += _tracing_lines(step) if step.tracing else []
    calibrated = [said for said in step.assumptions if said.startswith("boundary cost")]
    sentences += [f"Calibrated {said}." for said in calibrated]
    prediction = None
    if step.data_ns is not None:
        grid = tuple(float(gap_ns) for gap_ns in range(0, 3001, 250))
        steps_ns = tuple(estimate_gap(step.data_ns, step.kernels, gap_ns).additive_ns for gap_ns in grid)
        prediction = StepPrediction(grid, steps_ns, step.target_ns)
    return StepPanels((*sentences, *more), tuple(_budget_parts(step)), prediction)


def _budget_parts(step: MeasuredStep) -> list[tuple[str, float]]:
    """The typical step's budget; the kernels' time split where the model is known. Adds up to the span."""
    budget = step.steps.typical.budget
    parts: list[tuple[str, float]] = []
    for part in PARTS:
        value = getattr(budget, part)
        if part == "kernel_ns" and step.data_ns is not None:
            parts.append(("bytes at bandwidth (estimated)", step.data_ns))
            parts.append(("kernel time beyond", value - step.data_ns))
        elif value:
            parts.append((SPOKEN[part], value))
    return parts


SPREAD = {"min": 0, "p10": 10, "median": 50, "p90": 90, "max": 100}


def _steps_sentence(step: MeasuredStep) -> str:
    steps = step.steps
    low, p10, median, p90, high = np.percentile(steps.spans_ns, list(SPREAD.values()))
    text = (
        f"{len(steps.steps)} steps ({printable(steps.source)}), {step.kernels} kernels in the typical one, "
        f"on device {steps.device} of process {steps.process}.\nSpan: median {format_ns(median)}, "
        f"p10 {format_ns(p10)}, p90 {format_ns(p90)}, from {format_ns(low)} to {format_ns(high)}."
    )
    if len(steps.periods_ns):
        text += f" From start to start: median {format_ns(float(np.median(steps.periods_ns)))}."
    if steps.skipped:
        text += f" The first {steps.skipped} were cut off as asked."
    elif high > 1.2 * median:
        text += " No step was cut off (--skip N cuts off the first N)."
    if steps.partial:
        text += f" {steps.partial} steps hold graph replays recorded in part: the spread is theirs too."
    if steps.elsewhere:
        text += f" {steps.elsewhere} steps on other devices are not counted."
    return text


def _tracing_lines(step: MeasuredStep) -> list[str]:
    tracing = step.tracing
    if tracing is None:
        return ["What tracing added is unknown: give the untraced time of a step with --untraced-us."]
    added = tracing.span_ns - tracing.untraced_ns
    line = (
        f"Untraced a step takes {format_ns(tracing.untraced_ns)}. Traced, its span is "
        f"{format_ns(added, signed=True)} ({format_ns(tracing.added_per_kernel_ns, signed=True)} a kernel)"
    )
    if tracing.period_ns is None:
        return [f"{line}."]
    return [f"{line}, from start to start {format_ns(tracing.period_ns - tracing.untraced_ns, signed=True)}."]


def _more_kernels(step: MeasuredStep) -> str:
    if step.estimate is None:
        return ""
    listed = len(step.estimate.kernels)
    more = [(row.row, row.kernels - row.expected_kernels) for row in step.classes]
    extra = sorted((row for row in more if row[1] > 0), key=lambda row: -row[1])
    fewer = sorted((row for row in more if row[1] < 0), key=lambda row: row[1])
    if not extra and not fewer:
        return f"The step has the {listed} kernels of the list."
    text = f"The step has {step.kernels} kernels, the list {listed}."
    for word, rows in (("More", extra), ("Fewer", fewer)):
        if rows:
            text += f" {word}: " + ", ".join(f"{name} {abs(count)}" for name, count in rows) + "."
    return text


def _unmatched_names(step: MeasuredStep) -> str:
    if not step.unmatched:
        return ""
    named = "; ".join(
        f"{shorten(printable(one.name), 64)} ({one.kernels:,} x, {format_ns(one.measured_ns)})"
        for one in step.unmatched[:MOST_UNMATCHED]
    )
    left = len(step.unmatched) - MOST_UNMATCHED
    more = f"; and {left} more names" if left > 0 else ""
    return f"Of class other, which --class CLASS=PATTERN changes: {named}{more}."


def _tabulate_what_ifs(step: MeasuredStep) -> Table:
    rows = (
        (
            w.name,
            format_ns(w.before_ns),
            format_ns(w.after_ns),
            f"{100 * (w.after_ns - w.before_ns) / w.before_ns:+.1f} %",
        )
        for w in step.what_ifs
    )
    return Table("What if (the traced step, changed)", ("change", "before", "after", ""), tuple(rows))


def _predicted(value_ns: float | None, target_ns: float) -> tuple[str, str]:
    if value_ns is None:
        return "-", "-"
    return format_ns(value_ns), f"{100 * (value_ns - target_ns) / target_ns:+.0f} %"


def _prediction_document(prediction: Prediction, target_ns: float) -> dict[str, Any]:
    document = asdict(prediction)
    for form in ("additive", "max"):
        value = document[f"{form}_ns"]
        document[f"{form}_error"] = None if value is None else (value - target_ns) / target_ns
    return document


def _ns(value: float) -> str:
    return f"{value:,.0f}"
