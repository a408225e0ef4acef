"""The facts the estimate stands on, each value with its source: models, GPUs, kernel names."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def read_facts(name: str) -> dict[str, Any]:
    """One of `models`, `gpus`, `kernel_patterns`, as its JSON file holds it. Not to be changed."""
    text = files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    facts: dict[str, Any] = json.loads(text)
    return facts
