"""The command line: all commands in one application, and the one place where errors are caught."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import typer

from tracekit.cli_gaps import gaps
from tracekit.errors import TracekitError


def build_app(command: str | None = None) -> typer.Typer:
    """All commands; for `gaps` only that one, since loading the others takes longer than a small trace."""
    app = typer.Typer(
        help="Measures the real gap between GPU kernels, and what it costs a decode step.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(lambda: None)
    app.command()(gaps)
    if command != "gaps":
        from tracekit import cli_capture
        from tracekit.cli_estimate import estimate
        from tracekit.cli_report import export, report
        from tracekit.cli_scrub import scrub

        app.command()(estimate)
        app.command()(report)
        app.command()(export)
        app.command()(scrub)
        cli_capture.register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. The one place where tracekit's errors are caught."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        build_app(words[0] if words else None)(args=words)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except TracekitError as error:
        print(f"tracekit: {_one_line(error)}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print("tracekit: not enough memory for this trace; choose a smaller one", file=sys.stderr)
        return 1
    return 0


def run() -> None:
    """The installed command."""
    # A short run: looking for cycles while modules load costs more than it frees.
    gc.disable()
    sys.exit(main())


def _one_line(error: Exception) -> str:
    from tracekit.report.names import printable

    return printable(" ".join(str(error).split()))
