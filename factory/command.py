"""Commands of the factory, which behave as those of `cactus` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from cactus_decoding.cli import INTERRUPTED
from cactus_decoding.cli.app import run


def main(command: Callable[..., None], examples: str = "", arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failed check, 2 for a mistake, 130 for Ctrl-C."""
    application = typer.Typer(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
    application.command(epilog=examples)(command)
    try:
        return run(arguments, application, f"python -m factory.{command.__name__}")
    except KeyboardInterrupt:
        typer.echo("cactus: interrupted", err=True)
        return INTERRUPTED
