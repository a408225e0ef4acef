"""The README's sessions are real: each is run again, and every command is documented."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tracekit.cli import build_app, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SESSIONS = re.findall(r"```console\n(\$ tracekit [^\n]*)\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_sessions() -> None:
    assert len(SESSIONS) >= 2


@pytest.mark.parametrize(("command", "shown"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_a_session_prints_what_the_readme_shows(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)[2:]) == 0
    printed = capsys.readouterr().out.rstrip("\n")
    start, dots, end = shown.rstrip("\n").partition("\n[...]")
    assert printed.startswith(start)
    assert printed.endswith(end) if dots else printed == start


def test_every_command_is_in_the_readme() -> None:
    commands = [command.callback.__name__ for command in build_app().registered_commands if command.callback]
    assert commands
    assert [name for name in commands if f"tracekit {name}" not in README] == []
