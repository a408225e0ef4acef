"""Compares a result with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WrongResultError


def require_close(
    where: str, got: NDArray[Any], expected: NDArray[Any], *, relative: float = 0.0, absolute: float = 0.0
) -> None:
    """Raise WrongResultError with the first element that differs by more than the tolerances, or is NaN."""
    if got.shape != expected.shape:
        raise WrongResultError(f"FAIL {where}: shape {got.shape}, expected {expected.shape}")
    wrong = np.flatnonzero(~np.isclose(got, expected, rtol=relative, atol=absolute).ravel())
    if len(wrong):
        first = int(wrong[0])
        raise WrongResultError(
            f"FAIL {where}: element {first} is {got.ravel()[first]!r}, expected {expected.ravel()[first]!r}"
            f" ({len(wrong):,} of {got.size:,} are wrong)"
        )
