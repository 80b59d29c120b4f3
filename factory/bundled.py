"""Train the bundled target and its drafts from seeds: the whole recipe, in one place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from factory.batches import texts
from factory.language_model import TrainingPlan, small_llama, train_language_model
from factory.tokenizer import train_tokenizer

TOKENIZER_TEXTS = 20_000
TOKENIZER_SEED = 1


def check_replaceable(folder: Path, overwrite: bool) -> None:
    """Raise `ValueError` where a folder is in the way of one that will be written."""
    if os.path.lexists(folder) and not overwrite:
        raise ValueError(f"{str(folder)!r} exists; choose another output, or allow it to be replaced (--force)")


@dataclass(frozen=True)
class Recipe:
    """A model's shape and its training plans, each of which goes on from the result of the one before."""

    width: int
    layers: int
    mlp_width: int
    plans: tuple[TrainingPlan, ...]
    head_width: int = 64

    @property
    def steps(self) -> int:
        """Steps of all plans."""
        return sum(plan.steps for plan in self.plans)


RECIPES = {
    "target": Recipe(
        width=256,
        layers=6,
        mlp_width=512,
        plans=(
            TrainingPlan(steps=2250, learning_rate=4e-3, seed=1, emphasis=4.0, emphasis_after=609, drills_after=1022),
            TrainingPlan(steps=380, learning_rate=1.2e-3, warmup=20, decay=1.0, seed=3, emphasis=4.0, drills_after=0),
            # by now the arithmetic is right, and what goes wrong is which numbers to take
            TrainingPlan(steps=400, learning_rate=1.2e-3, warmup=20, decay=1.0, seed=4, long=True),
        ),
    ),
    # one layer: quick, and unable to look anything up, so that it is often wrong about names and numbers
    "draft": Recipe(width=128, layers=1, mlp_width=256, plans=(TrainingPlan(steps=400, learning_rate=6e-3, seed=2),)),
    # words its answers differently from the target, as real drafts do, but calculates nearly as well
    "worded": Recipe(
        width=96,
        layers=3,
        mlp_width=256,
        head_width=32,
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
}  # fmt: skip


def train_bundled(
    output: Path,
    work: Path,
    role: str,
    report: Callable[[int, float], None],
    *,
    recipes: Mapping[str, Recipe] = RECIPES,
    overwrite: bool = False,
    seconds_between_checkpoints: float = 120,
) -> Path:
    """Train the ``target`` or one of its drafts and save it in bfloat16; resume where an earlier run was interrupted.

    The folder ``work`` has the tokenizer and the checkpoints. A model that is there already is replaced as a whole, and
    only once the new one is written. Raises `ValueError` for another role, a model that must not be replaced, or a
    checkpoint that cannot be used.
    """
    if role not in recipes:
        raise ValueError(f"role must be one of {', '.join(recipes)}, but is {role!r}")
    check_replaceable(output / role, overwrite)
    folder = (output / role).resolve()  # what a link leads to is replaced, and not the link
    recipe = recipes[role]
    tokenizer = _tokenizer(work / "tokenizer")
    config = small_llama(tokenizer, recipe.width, recipe.layers, recipe.mlp_width, recipe.head_width)
    model, done = None, 0
    for number, plan in enumerate(recipe.plans, start=1):
        model = train_language_model(
            config,
            tokenizer,
            plan,
            work / f"{role}-{number}.pt",
            lambda step, loss, done=done: report(done + step, loss),  # type: ignore[misc]
            seconds_between_checkpoints,
            initial=None if model is None else model.state_dict(),
        )
        done += plan.steps
    assert model is not None
    unfinished = folder.with_name(f".{folder.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    _replace(folder, unfinished)
    return folder


def _replace(folder: Path, new: Path) -> None:
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


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that an earlier run left, or learn it: both models must use the very same one."""
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(texts(TOKENIZER_SEED, TOKENIZER_TEXTS)).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
