"""From a pair's collected counterfactuals to an importance that says where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cactus_decoding.generation.pair import Pair
from cactus_decoding.policy.importance import Importance
from cactus_decoding.policy.vocabulary import Vocabulary
from cactus_decoding.training.importance.fitting import FOLDS, Fit, examples_of, fit


def check_number_of_problems(problems: int) -> None:
    """Raise `ValueError` for so few problems that no cross-validation is possible."""
    if problems < FOLDS:
        raise ValueError(f"problems must be at least {FOLDS}, the folds of cross-validation, but is {problems}")


def learn(
    pair: Pair, entries: Sequence[dict[str, Any]], names: Mapping[str, Any], provenance: Mapping[str, Any]
) -> tuple[Importance, Fit]:
    """Return the importance of a pair's positions, with what it was trained on.

    ``names`` are those of the models and the task, and what was asked of it.

    Raises:
        ValueError: for too few problems, or positions of one kind only.
    """
    vocabulary = Vocabulary.of(pair.tokenizer, pair.target.vocabulary_size)
    importance, found = fit(examples_of(entries, len(vocabulary.texts)), vocabulary)
    about = dict(names) | {"problems": len(entries), "fit": found.as_dict(), "provenance": dict(provenance)}
    return replace(importance, about=about), found


def summary(found: Fit) -> str:
    """Return how it went, in a line."""
    value, low, high = found.auc
    ends = f"95 %: {low:.3f} to {high:.3f}" if found.auc.told else "too few problems for an interval"
    return (
        f"{found.positions} positions in {found.problems} problems; the drafted token spoils {100 * found.worse:.1f} % "
        f"of the continuations and mends {100 * found.better:.1f} %; ROC AUC out of fold {value:.3f} ({ends})"
    )
