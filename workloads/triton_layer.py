"""The Triton kernel of triton_pdl_chain; imported only where Triton is installed."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit  # type: ignore[untyped-decorator]
def layer(  # noqa: PLR0913, PLR0917 - a kernel
    source: Any,
    target: Any,
    weight: Any,
    bias: Any,
    size: Any,
    BLOCK: tl.constexpr,  # noqa: N803
    PDL: tl.constexpr,  # noqa: N803
) -> None:
    """out = relu(in) x weight + bias; the prologue reads weights only, the wait comes before the input."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    w = tl.load(weight + index, mask=inside)
    b = tl.load(bias + index, mask=inside)
    if PDL:
        gdc_wait()
    values = tl.load(source + index, mask=inside)
    tl.store(target + index, tl.fma(tl.maximum(values, 0.0), w, b), mask=inside)
    if PDL:
        gdc_launch_dependents()
