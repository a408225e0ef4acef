"""Imports point down, each foreign thing has one owner, and the README names every command."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracekit.cli import build_app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tracekit"
LAYERS = [
    {"cli", "cli_estimate", "__main__", "__init__"},
    {"report", "readers", "capture", "scrub"},
    {"analysis", "decode"},
    {"trace"},
    {"errors", "units", "intervals", "codes"},
]
NSYS_WORDS = re.compile(r"CUPTI_|StringIds|NVTX_EVENTS")
NSYS_OWNERS = {
    "readers/nsys_sqlite.py",
    "capture/cupti_rows.py",
    "capture/cupti_tables.py",
}  # reads it; writes it
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(part: str) -> int:
    """Its number from the top; every file `cli_*.py` is part of the command line."""
    name = "cli" if part.startswith("cli") else part
    return next(i for i, parts in enumerate(LAYERS) if name in parts)


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"{path}: a relative import"
            yield found.module or ""


def inner(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    names = [name.split(".") for name in imports(path) if name.split(".")[0] == "tracekit"]
    return {name[1] if len(name) > 1 else "__init__" for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = part_of(path)
    above = [part for part in inner(path) if layer(part) < layer(own)]
    beside = [part for part in inner(path) if layer(part) == layer(own) != 0 and part != own]
    assert not above, f"{own} imports {above}"
    assert own != "errors" or not beside
    if layer(own) == 1:
        assert not {"readers", "capture"} & set(beside) or own != "report", f"{own} imports {beside}"


@pytest.mark.parametrize("name", sorted(LAYERS[4]))
def test_the_lowest_modules_import_nothing_of_the_package(name: str) -> None:
    assert inner(PACKAGE / f"{name}.py") == set()


def test_the_estimate_takes_what_was_measured_and_never_the_other_way() -> None:
    assert not [p for p in (PACKAGE / "analysis").rglob("*.py") if "decode" in inner(p)]


def test_one_file_knows_the_tables_of_nsys() -> None:
    knowing = {str(p.relative_to(PACKAGE)) for p in FILES if NSYS_WORDS.search(p.read_text(encoding="utf-8"))}
    assert knowing <= NSYS_OWNERS
    assert "readers/nsys_sqlite.py" in knowing


@pytest.mark.parametrize("folder", ["tracekit", "tests", "benchmarks", "workloads"])
def test_click_is_never_imported(folder: str) -> None:
    """Typer carries its own copy."""
    for path in (ROOT / folder).rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "click"], path


def test_the_workloads_do_not_import_the_analysis() -> None:
    for path in (ROOT / "workloads").rglob("*.py"):
        assert not inner(path) & {"analysis", "decode", "report"}, path


def commands() -> list[str]:
    return [
        c.name or (c.callback.__name__.replace("_", "-") if c.callback else "")
        for c in build_app().registered_commands
    ]


@pytest.mark.parametrize("command", commands())
def test_the_readme_names_every_command(command: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\btracekit {re.escape(command)}\b", readme)
