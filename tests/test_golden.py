"""What the terminal shows, word for word. `make golden` renews the files after a change that was meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.run import run

SAMPLES = Path(__file__).parents[1] / "sample_traces"
GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "chain_by_range": ["pdl_chain_node.sqlite", "--by", "range"],
    "chain_by_stream": ["pdl_chain_node.sqlite", "--by", "stream"],
    "chain_graph_level": ["pdl_chain_graph_level.sqlite", "--by", "range"],
    "compiled_pairs": ["hf_compile.sqlite", "--top", "5"],
    "compiled_step": ["hf_compile.sqlite", "--by", "kernel", "--range", "decode_step", "--top", "3"],
    "two_traces": ["pdl_chain_node.sqlite", "pdl_chain_graph_level.sqlite", "--by", "none"],
    "csv": ["hf_compile.sqlite", "--by", "range", "--csv"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_output_equals_the_golden_file(name: str) -> None:
    words = [SAMPLES / word if word.endswith(".sqlite") else word for word in COMMANDS[name]]
    outcome = run("gaps", *words)
    assert outcome.code == 0, outcome.err
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TRACEKIT_RENEW_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(outcome.out, encoding="utf-8")
    assert outcome.out == path.read_text(encoding="utf-8")
