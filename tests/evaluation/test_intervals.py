"""Intervals cover the truth as often as they say, by simulation.

Each simulation has 2,000 experiments, so the share that covers has a standard deviation of 0.5 points: with a true
coverage of 95 % it leaves 93 to 97 % with probability 6e-5. Generators are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cactus_decoding.evaluation.intervals import clustered_wilson, percentiles, resampled_sums, wilson

EXPERIMENTS, PROBLEMS = 2000, 200


def covered(low, high, truth) -> float:
    return float(np.mean((np.asarray(low) <= truth) & (truth <= np.asarray(high))))


def holds(coverage: float) -> bool:
    return 0.93 <= coverage <= 0.97


def test_wilson_agrees_with_scipy():
    for right, answers in ((0, 10), (17, 20), (50, 50), (940, 1000)):
        expected = stats.binomtest(right, answers).proportion_ci(method="wilson")
        assert wilson(right, answers)[1:] == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_wilson_covers_and_the_normal_interval_does_not():
    rng = np.random.default_rng(1)
    truth = rng.uniform(0.85, 0.99, EXPERIMENTS)  # many shares, because a single one may favour either
    rights = rng.binomial(40, truth)
    intervals = np.array([wilson(right, 40) for right in rights])
    assert holds(covered(intervals[:, 1], intervals[:, 2], truth))
    share = rights / 40
    half = 1.96 * np.sqrt(share * (1 - share) / 40)
    assert not holds(covered(share - half, share + half, truth))


def test_answers_to_one_problem_are_not_independent():
    rng = np.random.default_rng(2)
    easy = rng.beta(2, 0.5, (EXPERIMENTS, PROBLEMS))  # problems differ, so that their answers are alike
    shares = rng.binomial(3, easy) / 3
    clustered = np.array([clustered_wilson(row, 3) for row in shares])
    assert holds(covered(clustered[:, 1], clustered[:, 2], 0.8))
    naive = np.array([wilson(row.sum() * 3, PROBLEMS * 3) for row in shares])
    assert not holds(covered(naive[:, 1], naive[:, 2], 0.8))


@pytest.fixture(scope="module")
def answers():
    """Right answers under two rules to the same problems, ``[problems, experiments]``, and the true difference."""
    rng = np.random.default_rng(3)
    shared = rng.random((PROBLEMS, EXPERIMENTS))
    first, second = shared < 0.9, shared + 0.03 * rng.standard_normal(shared.shape) < 0.85
    truth = 0.9 - float(np.mean(rng.random(10**6) + 0.03 * rng.standard_normal(10**6) < 0.85))
    return first.astype(float), second.astype(float), truth


def test_the_paired_bootstrap_covers_a_difference_and_an_unpaired_one_does_not(answers):
    first, second, truth = answers
    paired = resampled_sums(first - second) / PROBLEMS
    assert holds(covered(*np.percentile(paired, (2.5, 97.5), axis=0), truth))
    unpaired = (resampled_sums(first, seed=0) - resampled_sums(second, seed=1)) / PROBLEMS
    assert not holds(covered(*np.percentile(unpaired, (2.5, 97.5), axis=0), truth))


def test_the_bootstrap_covers_a_ratio_of_sums():
    rng = np.random.default_rng(4)
    steps = rng.integers(5, 40, (PROBLEMS, EXPERIMENTS)).astype(float)
    accepted = rng.binomial(steps.astype(int) * 6, 0.4).astype(float)
    ratios = resampled_sums(accepted) / resampled_sums(steps)
    assert holds(covered(*np.percentile(ratios, (2.5, 97.5), axis=0), 2.4))
    assert not holds(covered(*np.percentile(ratios, (10, 90), axis=0), 2.4))


def test_sums_are_the_same_in_parts_and_at_once(monkeypatch):
    columns = np.random.default_rng(5).random((50, 3))
    whole = resampled_sums(columns, resamples=2000)
    monkeypatch.setattr("cactus_decoding.evaluation.intervals._MAX_WEIGHTS", 50 * 300)
    parts = resampled_sums(columns, resamples=2000)
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_percentiles_span_the_middle():
    assert percentiles(np.arange(1001.0)) == (25.0, 975.0)
