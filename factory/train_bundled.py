"""`python -m factory.train_bundled`: the bundled models from their seeds, the whole recipe in one place."""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.writing import check_folder
from factory.batches import texts
from factory.command import main
from factory.language_model import TrainingPlan, small_llama, train_language_model
from factory.tokenizer import train_tokenizer

TOKENIZER_TEXTS = 20_000
TOKENIZER_SEED = 1
EXAMPLES = (
    "[bold]Examples[/bold]\n\npython -m factory.train_bundled --output ./trained\n\n"
    "python -m factory.train_bundled --output ./trained --role worded --force"
)


@dataclass(frozen=True)
class Recipe:
    """A model's shape and its training plans, each of which goes on from the result of the one before."""

    width: int
    layers: int
    mlp_width: int
    plans: tuple[TrainingPlan, ...]
    head_width: int = 64


RECIPES = {
    "target": Recipe(
        width=256, layers=6, mlp_width=512,
        plans=(
            TrainingPlan(steps=2250, learning_rate=4e-3, seed=1, emphasis=4.0, emphasis_after=609, drills_after=1022),
            TrainingPlan(steps=380, learning_rate=1.2e-3, warmup=20, decay=1.0, seed=3, emphasis=4.0, drills_after=0),
            # by now the arithmetic is right, and what goes wrong is which numbers to take
            TrainingPlan(steps=400, learning_rate=1.2e-3, warmup=20, decay=1.0, seed=4, long=True),
        ),
    ),
    # words its answers differently from the target, as real drafts do, but calculates nearly as well
    "worded": Recipe(
        width=96, layers=3, mlp_width=256, head_width=32,
        plans=(
            TrainingPlan(
                steps=1600, learning_rate=6e-3, emphasis=4.0, emphasis_after=300, all_numbers=True, drills_after=500,
                habit=0.9, seed=5,
            ),
            # the drills have done their work, and what goes wrong is which numbers to take
            TrainingPlan(
                steps=400, learning_rate=3e-3, warmup=20, decay=0.8, emphasis=4.0, all_numbers=True, habit=0.9, seed=6,
            ),
        ),
    ),
    # one layer: quick, and unable to look anything up, so that it is often wrong about names and numbers
    "draft": Recipe(width=128, layers=1, mlp_width=256, plans=(TrainingPlan(steps=400, learning_rate=6e-3, seed=2),)),
}  # fmt: skip


def train_bundled(
    output: Annotated[
        Path, typer.Option(metavar="DIR", file_okay=False, help="Where target/, worded/ and draft/ are written.")
    ],
    work: Annotated[Path | None, typer.Option(
        metavar="DIR", file_okay=False, help="Where checkpoints are kept, to resume from.",
        show_default="DIR-work, beside the output",
    )] = None,
    role: Annotated[
        Literal["target", "worded", "draft", "all"], typer.Option(help="Which model to train.")
    ] = "all",
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model that is there, once the new one is done.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads.", show_default="torch's own")
    ] = None,
) -> None:  # fmt: skip
    """Train the bundled target and its drafts from their seeds; a run that was interrupted goes on from its checkpoint.

    Hours on a CPU. A model folder that exists is left alone, or with --force replaced as a whole at the very end.
    """
    if not output.name:
        raise ValueError("--output must be a folder with a name, such as ./trained")
    work = work or output.with_name(f"{output.resolve().name}-work")
    options.prepare_process(threads, small=False)
    train_roles(output, work, [*RECIPES] if role == "all" else [role], RECIPES, force=force)


def train_roles(output: Path, work: Path, roles: Sequence[str], recipes: Mapping[str, Recipe], *, force: bool) -> None:
    """Train models one after another, with progress on stderr; nothing is trained if one must not be written.

    Raises:
        ValueError: if a model folder exists and is not to be replaced, or a checkpoint does not fit.
    """
    for folder in (output, work):
        check_folder(folder)
    for role in roles:
        check_replaceable(output / role, force)
    for role in roles:
        if not (work / "tokenizer" / "tokenizer.json").exists():
            typer.echo(f"{role}: learning the tokenizer from {TOKENIZER_TEXTS} texts", err=True)
        steps, losses = list[int](), deque[float](maxlen=20)
        with counting(role, sum(plan.steps for plan in recipes[role].plans)) as show:

            def report(step: int, loss: float, role=role, steps=steps, losses=losses, show=show) -> None:
                if not steps and step > 1:
                    typer.echo(f"{role}: resumed after step {step - 1}", err=True)
                steps.append(step)
                losses.append(loss)
                show(step, f"loss {sum(losses) / len(losses):.3f}")

            folder = train_role(output, work, role, report, recipes=recipes, overwrite=force)
        if not steps:
            typer.echo(f"{role}: the training had been finished before", err=True)
        typer.echo(f"{role}: written to {folder}", err=True)


def train_role(
    output: Path, work: Path, role: str, report: Callable[[int, float], None], *,
    recipes: Mapping[str, Recipe] = RECIPES, overwrite: bool = False, seconds_between_checkpoints: float = 120,
) -> Path:  # fmt: skip
    """Train the ``target`` or one of its drafts and save it in bfloat16; resume where an earlier run was interrupted.

    The folder ``work`` has the tokenizer and the checkpoints. A model that is there already is replaced as a whole, and
    only once the new one is written. Raises `ValueError` for another role, a model that must not be replaced, or a
    checkpoint that cannot be used.
    """
    if role not in recipes:
        raise ValueError(f"role must be one of {', '.join(recipes)}, but is {role!r}")
    check_replaceable(output / role, overwrite)
    folder = (output / role).resolve()  # what a link leads to is replaced, and not the link
    recipe, tokenizer = recipes[role], load_tokenizer(work / "tokenizer")
    config = small_llama(tokenizer, recipe.width, recipe.layers, recipe.mlp_width, recipe.head_width)
    model, done = None, 0
    for number, plan in enumerate(recipe.plans, start=1):
        model = train_language_model(
            config, tokenizer, plan, work / f"{role}-{number}.pt",
            lambda step, loss, done=done: report(done + step, loss),  # type: ignore[misc]
            seconds_between_checkpoints, initial=None if model is None else model.state_dict(),
        )  # fmt: skip
        done += plan.steps
    assert model is not None
    unfinished = folder.with_name(f".{folder.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    replace(folder, unfinished)
    return folder


def check_replaceable(folder: Path, overwrite: bool) -> None:
    """Raise `ValueError` where a folder is in the way of one that will be written."""
    if os.path.lexists(folder) and not overwrite:
        raise ValueError(f"{str(folder)!r} exists; choose another output, or allow it to be replaced (--force)")


def replace(folder: Path, new: Path) -> None:
    """Put a new folder in the place of an old one, which is removed last."""
    old = folder.with_name(f".{folder.name}-replaced")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(new, folder)
    except BaseException:
        if old.exists():
            os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that an earlier run left, or learn it: all models must use the very same one."""
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(texts(TOKENIZER_SEED, TOKENIZER_TEXTS)).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main(train_bundled, EXAMPLES))
