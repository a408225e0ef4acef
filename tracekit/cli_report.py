"""`tracekit report` and `tracekit export`: the page, and files for other viewers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.capture.sidecar import find_sidecar, sidecar_path
from tracekit.cli_gaps import exported
from tracekit.cli_step import Asked, Traced, choose_steps, measure_traced
from tracekit.errors import UnanswerableError, UnknownNameError, UsageError
from tracekit.units import format_bytes, format_ns

if TYPE_CHECKING:
    from tracekit.report.timeline_data import InKernel, StepPanels
    from tracekit.trace import Trace

TraceFile = Annotated[Path, typer.Argument(help="An nsys SQLite export.", metavar="TRACE")]


def report(
    trace: TraceFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")],
    range_name: Annotated[
        str | None,
        typer.Option("--range", help="A step is this NVTX range; the answer is about it alone."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="A second trace, drawn below at the same scale.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare recordings that were not made in the same way.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Hold the step against this model's estimate, as `estimate` does.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences in the step, with --model. [1]")] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens in the KV cache of each, with --model. [1024]")
    ] = None,
) -> None:
    """Write one HTML file that shows where the time goes, where the gaps are, and why; it works offline.

    Example: tracekit report trace.sqlite -o report.html --model Qwen3-0.6B
    """
    from tracekit.analysis.compare import compare as compare_traces
    from tracekit.decode.classes import classify_kernel
    from tracekit.readers import read
    from tracekit.report.timeline import write_timeline
    from tracekit.report.timeline_data import collect_page

    paths = [exported(path) for path in (trace, compare) if path]
    _keep(paths, output)
    traces = [read(path, shapes=True) for path in paths]
    difference = compare_traces(traces[0], traces[1], classify_kernel, force=force) if compare else None
    asked = Asked(choose_steps([model] if model else None, batch, context))
    panels = [_panels(one, Traced(path, range_name), asked) for one, path in zip(traces, paths, strict=True)]
    pages = [collect_page(one, range_name, panel) for one, panel in zip(traces, panels, strict=True)]
    write_timeline(pages, output, difference)
    print(f"{output}: {format_bytes(output.stat().st_size)}")


def export(
    trace: TraceFile,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write Chrome JSON (.json.gz) that Perfetto opens.")
    ] = None,
) -> None:
    """Write the trace for another viewer, with no kernel lost.

    Example: tracekit export trace.sqlite --perfetto out.json.gz
    """
    from tracekit.readers import read
    from tracekit.report.perfetto import write_perfetto

    if perfetto is None:
        raise UsageError("say what to write: --perfetto out.json.gz")
    _keep([trace], perfetto)
    write_perfetto(read(exported(trace), shapes=True), perfetto)
    print(f"{perfetto}: {format_bytes(perfetto.stat().st_size)}")


def _panels(trace: Trace, traced: Traced, asked: Asked) -> StepPanels:
    """What is known of the steps; unasked, nothing where it is not clear what a step is."""
    from tracekit.report.step import step_panels
    from tracekit.report.timeline_data import StepPanels

    stamped = _stamp_sentences(traced.path)
    try:
        panels = step_panels(measure_traced(trace, traced, asked), stamped)
    except (UnknownNameError, UnanswerableError) as error:
        if asked.steps or traced.range_name:
            raise
        refusal = (f"No budget of a step. {error}.",) if isinstance(error, UnanswerableError) else ()
        panels = StepPanels(sentences=(*refusal, *stamped))
    return replace(panels, inside=_inside(traced.path))


def _inside(trace: Path) -> InKernel | None:
    """The first launch whose tasks the trace's sidecar holds."""
    from tracekit.analysis.tasks import read_tasks
    from tracekit.report.tasks import inside_kernel

    sidecar = find_sidecar(trace)
    if not sidecar or not sidecar.tasks:
        return None
    return inside_kernel(read_tasks(sidecar.tasks[0], sidecar_path(trace).name))


def _stamp_sentences(trace: Path) -> tuple[str, ...]:
    """The device gap that the workload stamped inside its kernels, from the trace's sidecar."""
    sidecar = find_sidecar(trace)
    stamps = sidecar.stamps if sidecar else ()
    smallest = min((stamp.layer_bytes for stamp in stamps), default=0)
    return tuple(
        f"Device gap in mode {stamp.mode}, from the last block's end to the next kernel's first block, "
        f"stamped inside the kernels, untraced: {format_ns(stamp.device_gap_ns)} "
        f"(p10 {format_ns(stamp.device_gap_p10_ns)}, p90 {format_ns(stamp.device_gap_p90_ns)}; "
        f"{format_bytes(stamp.layer_bytes)} a layer)."
        for stamp in stamps
        if stamp.layer_bytes == smallest
    )


def _keep(traces: Sequence[Path], output: Path) -> None:
    """No output may replace a trace."""
    if any(output.exists() and trace.exists() and output.samefile(trace) for trace in traces):
        raise UsageError(f"{output} is the trace itself; name another file to write")
