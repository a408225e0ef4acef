"""Two figures of the estimate on one offline page: step time against g, and the share of gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from tracekit.decode.estimate import StepEstimate, gap_share
from tracekit.decode.kernels import Step, list_kernels
from tracekit.decode.models import ModelShape, load_model, model_names
from tracekit.errors import TracekitError
from tracekit.report.estimate import list_assumptions, name_step

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class ShareMap:
    """Share of gaps by model (smallest first) and batch, under one g; `shares[model][batch]`."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    gap_ns: float
    shares: tuple[tuple[float, ...], ...]


def map_shares(like: StepEstimate, gap_ns: float) -> ShareMap:
    """The share of gaps for every model of the facts; context, dtypes, fusion and machine as in `like`.

    A model that `like`'s GPUs cannot share evenly is left out.
    """
    models = {shape.name: shape for shape in (like.step.model, *map(load_model, model_names()))}
    sharable = [shape for shape in models.values() if shape.heads % like.step.tp == 0]
    ordered = sorted(sharable, key=lambda shape: _weight_bytes(replace(like.step, model=shape, batch=1)))
    return ShareMap(
        models=tuple(shape.name for shape in ordered),
        batches=BATCHES,
        gap_ns=gap_ns,
        shares=tuple(tuple(_share(like, shape, batch, gap_ns) for batch in BATCHES) for shape in ordered),
    )


def write_plot(estimates: Sequence[StepEstimate], path: Path) -> None:
    """Write the page to `path`: it needs no network. Raises TracekitError where it cannot be written."""
    html = render_plot(estimates)
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise TracekitError(f"{path}: cannot be written: {error.strerror}") from None


def render_plot(estimates: Sequence[StepEstimate]) -> str:
    """The page as text, with plotly's script inside (about 5 MB), and the assumptions under the figures."""
    figures: str = _draw(estimates).to_html(include_plotlyjs=True, full_html=False)
    notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in list_assumptions(estimates))
    head = '<meta charset="utf-8"><title>tracekit estimate</title>'
    style = "<style>body { font-family: sans-serif; margin: 1em } li { font-size: 80% }</style>"
    return (
        f'<!doctype html><html lang="en"><head>{head}{style}</head>'
        f"<body>{figures}<h2>Assumptions</h2><ul>{notes}</ul></body></html>"
    )


def _draw(estimates: Sequence[StepEstimate]) -> Any:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    shares = map_shares(estimates[0], _middle_gap_ns(estimates[0]))
    titles = ("Step time against g", f"Share of gaps at g = {shares.gap_ns / 1e3:g} us")
    figure = make_subplots(rows=2, cols=1, subplot_titles=titles, vertical_spacing=0.12)
    for estimate in estimates:
        gaps_us = [0.0, *(gap.gap_ns / 1e3 for gap in estimate.gaps)]
        steps_us = [estimate.data_ns / 1e3, *(gap.additive_ns / 1e3 for gap in estimate.gaps)]
        line = go.Scatter(x=gaps_us, y=steps_us, name=escape(name_step(estimate)), showlegend=True)
        figure.add_trace(line, row=1, col=1)
    figure.add_trace(_heatmap(shares), row=2, col=1)
    figure.update_xaxes(title_text="g, us", row=1, col=1)
    figure.update_yaxes(title_text="step, us", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="batch", type="category", row=2, col=1)
    return figure.update_layout(height=900)


def _heatmap(shares: ShareMap) -> Any:
    import plotly.graph_objects as go

    # Plotly reads labels as HTML, and a model's name may be a folder's: escape()
    percent = [[round(100 * share, 1) for share in row] for row in shares.shares]
    return go.Heatmap(
        x=[str(batch) for batch in shares.batches],
        y=[escape(model) for model in shares.models],
        z=percent,
        texttemplate="%{z:.0f} %",
        colorbar={"title": "%", "len": 0.4, "y": 0.2},
        zmin=0,
        zmax=100,
    )


def _share(like: StepEstimate, model: ModelShape, batch: int, gap_ns: float) -> float:
    kernels = list_kernels(replace(like.step, model=model, batch=batch))
    data_ns = like.machine.time_ns(sum(kernel.total_bytes for kernel in kernels))
    return gap_share(data_ns / 1e3, len(kernels), gap_ns / 1e3)


def _weight_bytes(step: Step) -> int:
    return sum(kernel.weight_bytes for kernel in list_kernels(step))


def _middle_gap_ns(estimate: StepEstimate) -> float:
    return estimate.gaps[len(estimate.gaps) // 2].gap_ns
