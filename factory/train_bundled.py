"""`python -m factory.train_bundled`: the bundled models from their seeds."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from factory.command import main

if TYPE_CHECKING:
    from factory.bundled import Recipe

EXAMPLES = (
    "[bold]Examples[/bold]\n\npython -m factory.train_bundled --output ./trained\n\n"
    "python -m factory.train_bundled --output ./trained --role worded --force"
)


class Role(StrEnum):
    """What to train."""

    TARGET = "target"
    WORDED = "worded"
    DRAFT = "draft"
    ALL = "all"


def train_bundled(
    output: Annotated[
        Path, typer.Option(metavar="DIR", file_okay=False, help="Where target/, worded/ and draft/ are written.")
    ],
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Where checkpoints are kept, to resume from.",
            show_default="DIR-work, beside the output",
        ),
    ] = None,
    role: Annotated[Role, typer.Option(help="Which model to train.")] = Role.ALL,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model that is there, once the new one is done.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads.", show_default="torch's own")
    ] = None,
) -> None:
    """Train the bundled target and its drafts from their seeds; a run that was interrupted goes on from its checkpoint.

    Hours on a CPU. A model folder that exists is left alone, or with --force replaced as a whole at the very end.
    """
    if not output.name:
        raise ValueError("--output must be a folder with a name, such as ./trained")
    work = work or output.with_name(f"{output.resolve().name}-work")
    roles = [each.value for each in Role if each is not Role.ALL] if role is Role.ALL else [role.value]
    _check(output, work, roles, force)
    typer.echo("Loading PyTorch", err=True)
    from factory.bundled import RECIPES

    options.prepare(threads, small=False)
    train_roles(output, work, roles, RECIPES, force=force)


def _check(output: Path, work: Path, roles: Sequence[str], force: bool) -> None:
    """Raise `ValueError` where something must not or cannot be written."""
    from cactus_decoding.core.files.writing import check_folder
    from factory.bundled import check_replaceable

    for folder in (output, work):
        check_folder(folder)
    for role in roles:
        check_replaceable(output / role, force)


def train_roles(output: Path, work: Path, roles: Sequence[str], recipes: Mapping[str, Recipe], *, force: bool) -> None:
    """Train models one after another, with progress on stderr; nothing is trained if one must not be written.

    Raises:
        ValueError: if a model folder exists and is not to be replaced, or a checkpoint does not fit.
    """
    from factory import bundled

    _check(output, work, roles, force)
    for role in roles:
        if not (work / "tokenizer" / "tokenizer.json").exists():
            typer.echo(f"{role}: learning the tokenizer from {bundled.TOKENIZER_TEXTS} texts", err=True)
        with counting(role, recipes[role].steps) as show:
            report = _Report(role, show)
            folder = bundled.train_bundled(output, work, role, report, recipes=recipes, overwrite=force)
        if report.first is None:
            typer.echo(f"{role}: the training had been finished before", err=True)
        typer.echo(f"{role}: written to {folder}", err=True)


class _Report:
    """Passes steps and a smoothed loss on to the progress display, and says where a run goes on from.

    Attributes:
        first: the first step that was taken, or None.
    """

    def __init__(self, role: str, show: Callable[..., None]) -> None:
        self.first: int | None = None
        self._role, self._show = role, show
        self._losses: deque[float] = deque(maxlen=20)

    def __call__(self, step: int, loss: float) -> None:
        if self.first is None:
            self.first = step
            if step > 1:
                typer.echo(f"{self._role}: resumed after step {step - 1}", err=True)
        self._losses.append(loss)
        self._show(step, f"loss {sum(self._losses) / len(self._losses):.3f}")


if __name__ == "__main__":
    sys.exit(main(train_bundled, EXAMPLES))
