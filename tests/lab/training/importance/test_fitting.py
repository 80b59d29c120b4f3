"""The fit: it finds what decides, says how well on problems it has not seen, and refuses what it cannot learn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.metrics import roc_auc_score
from support.importances import random_importance

from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.training.importance.fitting import Examples, auc_with_interval, examples_of, fit, summary

WORDS = Vocabulary(tuple(f" w{i}" for i in range(12)))


def made(positions: int = 900, problems: int = 150, seed: int = 0, *, spread: float = 6.0) -> Examples:
    """Return positions whose harm is drawn from a known importance; spread 0 makes it chance."""
    generator = np.random.default_rng(seed)
    rows = generator.dirichlet(np.full(12, 0.3), size=(positions, 2))
    importance = random_importance(WORDS, seed=seed, spread=spread)
    target, draft = (torch.from_numpy(rows[:, i]) for i in (0, 1))
    chance = importance(target, draft, []).numpy()
    worse = (generator.random(positions) < chance).astype(float)
    return Examples(
        csr_array(rows.reshape(positions, 24)), worse, np.zeros(positions), generator.integers(0, problems, positions)
    )


def test_it_finds_what_decides() -> None:
    importance, found = fit(made(), WORDS)
    truth = random_importance(WORDS, seed=0, spread=6.0)
    fresh = np.random.default_rng(99).dirichlet(np.full(12, 0.3), size=(500, 2))
    rows = [torch.from_numpy(fresh[:, i]) for i in (0, 1)]
    told, true = (each(*rows, []).numpy() for each in (importance, truth))
    assert np.corrcoef(told, true)[0, 1] > 0.9
    assert np.abs(told - true).mean() < 0.1  # a probability, not only an order
    assert found.auc.low > 0.75
    assert found.log_loss < found.log_loss_of_share - 0.1
    assert (found.positions, importance.vocabulary) == (900, WORDS.fingerprint)
    assert f"{found.auc.value:.3f} (95 %: {found.auc.low:.3f} to" in summary(found)
    assert "give more problems" not in summary(found)
    assert fit(made(), WORDS)[0] == importance  # the same examples give the same weights


def test_where_it_is_chance_the_area_says_so() -> None:
    """Predictions of several folds are pooled, so without a signal the area is a little below a half: each fold's mean
    is against that of the rest."""
    _, found = fit(made(spread=0.0), WORDS)
    assert found.auc.low < 0.5
    assert 0.4 < found.auc.value < 0.55
    assert found.strength <= 1.0
    assert summary(found).endswith("; that is no better than one importance for all positions: give more problems")


def test_problems_are_not_split_between_folds() -> None:
    """Positions of a problem are copies here: split between folds they would be learned by heart."""
    positions, problems = 600, 60
    generator = np.random.default_rng(1)
    rows = np.repeat(generator.dirichlet(np.full(12, 0.3), size=(problems, 2)).reshape(problems, 24), 10, axis=0)
    worse = np.repeat((generator.random(problems) < 0.5).astype(float), 10)
    group = np.repeat(np.arange(problems), 10)
    grouped = Examples(csr_array(rows), worse, np.zeros(positions), group)
    alone = Examples(csr_array(rows), worse, np.zeros(positions), np.arange(positions))
    assert fit(grouped, WORDS)[1].auc.value < 0.65
    assert fit(alone, WORDS)[1].auc.value > 0.75


def test_the_area_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    predicted, share = generator.integers(0, 9, 200) / 9, generator.integers(0, 2, 200).astype(float)
    found = auc_with_interval(predicted, share, np.arange(200) // 4, resamples=200)
    assert found.value == pytest.approx(roc_auc_score(share, predicted), abs=1e-12)
    assert found.low < found.value < found.high
    halves = generator.integers(0, 3, 200) / 2
    twice = np.concatenate([np.ones(200), np.zeros(200)]), np.concatenate([halves, 1 - halves])
    weighted = roc_auc_score(twice[0], np.concatenate([predicted] * 2), sample_weight=twice[1])
    assert auc_with_interval(predicted, halves, np.arange(200), resamples=9).value == pytest.approx(weighted, abs=1e-12)


def test_the_unit_is_the_problem() -> None:
    """As many positions from fewer problems make a wider interval."""
    predicted, share = np.tile(np.linspace(0, 1, 40), 10), np.tile(np.arange(40) % 2.0, 10)
    few, many = (
        auc_with_interval(predicted, share, groups, resamples=400) for groups in (np.arange(400) % 10, np.arange(400))
    )
    narrow, wide = (each.high - each.low for each in (many, few))
    assert few.value == many.value
    assert wide != narrow
    assert not auc_with_interval(predicted[:5], share[:5], np.zeros(5, dtype=int)).has_ends


def test_examples_are_the_rows_side_by_side() -> None:
    position = {
        "target": [[0, 2], [0.25, 0.75]],
        "draft": [[1], [1.0]],
        "right_with": [True, False],
        "right_without": [True, True],
    }
    examples = examples_of([{"positions": []}, {"positions": [position, position]}], 3)
    assert examples.rows.toarray().tolist() == [[0.25, 0, 0.75, 0, 1, 0]] * 2
    assert examples.worse.tolist() == [0.5, 0.5]
    assert examples.problem.tolist() == [1, 1]


def test_what_nothing_can_be_learned_from_is_told() -> None:
    examples, few = made(60, 20), made(60, 3)
    for given, message in (
        (replace(examples, worse=np.zeros(60)), "one class only: the drafted token leaves every answer as right"),
        (replace(examples, worse=np.ones(60)), "one class only: the drafted token spoils every answer"),
        (
            replace(examples, worse=(np.arange(60) < 2).astype(float)),
            "only [1-4] problems have a position where the drafted token spoils",
        ),
        (few, "3 problems have a position .* cross-validation takes 5"),
        (examples_of([{"positions": []}] * 9, 12), "0 problems have a position"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(given, WORDS)
