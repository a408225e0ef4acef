"""The megakernel's figures in README.md and NOTES.md are those of the run they speak of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RUN = json.loads((ROOT / "benchmarks" / "results" / "megakernel_h200_2026-11-30.json").read_text())
ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in RUN["rows"]}
SECTION = (ROOT / "README.md").read_text().split("## The megakernel\n")[1].split("\n## ")[0]
NOTES = (ROOT / "workloads" / "megakernel" / "NOTES.md").read_text()
SECOND_RUN = NOTES.split("## Second run: 2026-11-30")[1]
TABLE = re.findall(r"^\| (.+) \| (-|[\d.]+) \| (.+) \|$", SECTION, flags=re.MULTILINE)
CHAIN = {mode.replace("+pdl", " + PDL"): mode for mode in ("stream", "stream+pdl", "graph", "graph+pdl")}


def row_of(label: str) -> dict[str, Any]:
    name = label.removesuffix(" (not comparable)")
    return ROWS[f"{CHAIN[name]} (first)" if name in CHAIN else name]


def measured(row: dict[str, Any]) -> str:
    return f"{row['median_us']:.3f} ({row['min_us']:.3f}-{row['max_us']:.3f})"


def predicted(row: dict[str, Any]) -> str:
    return "-" if row["predicted_us"] is None else f"{row['predicted_us']:.2f}"


def test_the_table_has_all_its_rows() -> None:
    assert len(TABLE) == 11


@pytest.mark.parametrize(("label", "prediction", "figures"), TABLE, ids=[label for label, _, _ in TABLE])
def test_a_row_of_the_readme_is_what_was_measured(label: str, prediction: str, figures: str) -> None:
    assert (prediction, figures) == (predicted(row_of(label)), measured(row_of(label)))


def test_the_figures_in_the_text() -> None:
    text = " ".join(SECTION.split())
    graph, pdl, data = (
        ROWS[name]["median_us"] for name in ("graph (again)", "graph+pdl (again)", "64 x 256, data, rotated")
    )
    assert f"graph gave {graph:.3f} and graph + PDL {pdl:.3f}" in text
    assert f"rotated {data:.3f}" in text
    first = ROWS["graph+pdl (first)"]["median_us"]
    shares = [
        ROWS[f"16 x 256 x 4, {name}"]["median_us"] / first
        for name in ("push", "push, rotated", "cluster", "cluster, rotated")
    ]
    assert f"cost {min(shares):.0%}".rstrip("%") + f" to {max(shares):.0%}".replace("%", " %") in text


@pytest.mark.parametrize("name", ["64 x 256, plain", "16 x 256 x 4, push, rotated"])
def test_the_shares_in_the_text(name: str) -> None:
    (shares,) = (one["shares"] for one in RUN["timeline"] if one["name"] == name)
    fetch, wait, execute, idle = (f"{100 * shares[k]:.1f} %" for k in ("fetch", "wait", "execute", "idle"))
    said = rf"fetch {fetch}, wait {wait}, execute( \([a-z ]+\))? {execute}, idle( \([a-z ]+\))? {idle} in "
    assert re.search(said + re.escape(name.split(", ", 1)[1]), " ".join(SECTION.split()))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["predicted_us"] is not None])
def test_a_row_of_the_notes_is_what_was_measured(name: str) -> None:
    row = ROWS[name]
    line = rf"^\| {re.escape(name)} \| {predicted(row)} \| .+ \| {re.escape(measured(row))} \|$"
    assert re.search(line, SECOND_RUN, flags=re.MULTILINE)
