"""Numbers as people read them. Everything inside is integer nanoseconds; this is the one way out."""

from __future__ import annotations

import math
import re
from decimal import Decimal


def format_ns(value_ns: float | None, *, signed: bool = False) -> str:
    """A duration in the unit that suits it: `96 ns`, `20.5 us`, `1.24 ms`, `3.10 s`.

    Three significant digits from a microsecond up; whole nanoseconds below. None or NaN is `-`.
    `signed` puts a plus before a positive value.
    """
    if value_ns is None or math.isnan(value_ns):
        return "-"
    sign = "+" if signed and value_ns > 0 else ""
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        # 0.9995: the value that rounds up to 1.00 of this unit belongs to this unit
        if abs(value_ns) >= 0.9995 * size_ns:
            return f"{sign}{_three_digits(value_ns / size_ns)} {unit}"
    return f"{sign}{value_ns:.0f} ns"


def format_share(part: float, whole: float) -> str:
    """A share in percent, `24.3 %`; `-` of nothing; never rounds a remainder away to 0 or 100."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < percent < 0.05:
        return "<0.1 %"
    if 99.95 <= percent < 100:
        return ">99.9 %"
    return f"{percent:.1f} %"


def format_bytes(value_bytes: float) -> str:
    """A size in decimal units, as bandwidths are given: `65.5 kB`, `1.19 GB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value_bytes) >= 0.9995 * size:
            return f"{_three_digits(value_bytes / size)} {unit}"
    return f"{value_bytes:.0f} B"


def _three_digits(value: float) -> str:
    decimals = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005))) if value else 2
    return f"{value:,.{min(decimals, 2)}f}"


_NS_OF = {"": 1, "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def parse_ns(text: str) -> int:
    """Nanoseconds from `1.5ms`, `20 us`, `3s` or a plain number of nanoseconds.

    Raises `ValueError` for anything else.
    """
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zµ]*)\s*", text)
    if not match or match[2] not in _NS_OF:
        raise ValueError(f"{text!r} is not a time; write it as 1.5ms, 20us, 3s or nanoseconds")
    return round(Decimal(match[1]) * _NS_OF[match[2]])
