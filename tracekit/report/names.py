"""Names out of a trace, made fit to print: they are somebody's text."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (right-to-left marks), surrogates, line breaks


def printable(name: str) -> str:
    """Control characters, escape codes and direction marks spelled out: shown, not obeyed."""
    return "".join(c if unicodedata.category(c) not in _HIDDEN else _spell(c) for c in name)


def shorten(name: str, width: int) -> str:
    """The name in at most `width` characters, cut in the middle: both ends tell kernels apart."""
    if len(name) <= width:
        return name
    front = width // 2
    return f"{name[:front]}…{name[len(name) - (width - 1 - front) :]}"


def shorten_all(names: Iterable[str], width: int) -> dict[str, str]:
    """Each distinct name with its printable short form; forms that would be equal get a number."""
    short: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        if name in short:
            continue
        form, number = shorten(printable(name), width), 2
        while form in taken:
            form, number = shorten(printable(name), width - 3 - len(str(number))) + f" #{number}", number + 1
        taken.add(form)
        short[name] = form
    return short


def _spell(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
