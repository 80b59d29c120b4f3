"""95 % intervals: Wilson's for proportions, the paired bootstrap over problems for everything else."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_Z = 1.959964
_LEVELS = (2.5, 97.5)
RESAMPLES = 4000
_MAX_WEIGHTS = 2**23
"""This many weights are held at once."""


class Interval(NamedTuple):
    """A value and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(right: float, answers: float) -> Interval:
    """Return a proportion with Wilson's interval.

    Args:
        right: successes; need not be whole where ``answers`` is an effective number.
        answers: trials, above 0.

    Source: Wilson, JASA 22 (1927).

    Example:
        >>> [round(number, 3) for number in wilson(17, 20)]
        [0.85, 0.64, 0.948]
    """
    share, square = right / answers, _Z**2
    middle = (right + square / 2) / (answers + square)
    half = _Z * np.sqrt(answers * share * (1 - share) + square / 4) / (answers + square)
    return Interval(share, float(max(0.0, middle - half)), float(min(1.0, middle + half)))


def clustered_wilson(shares: Numbers, per_problem: int) -> Interval:
    """Return a proportion with Wilson's interval where each problem was answered several times.

    Answers to one problem are alike, so they count for fewer: the number of answers is divided by the design effect,
    the variance of the mean over problems relative to that of as many independent answers. It is kept between 1 and
    ``per_problem``.

    Args:
        shares: of right answers to each problem, ``[problems]``.
        per_problem: answers to each.

    Source: Rao and Scott, Biometrics 48 (1992).

    Example:
        >>> same = clustered_wilson(np.array([1.0, 0.0] * 50), 3)  # three equal answers tell no more than one
        >>> [round(number, 3) for number in same] == [round(number, 3) for number in wilson(50, 100)]
        True
    """
    problems, mean = len(shares), float(shares.mean())
    effect = float(per_problem)
    if problems > 1 and 0 < mean < 1:
        effect = float(shares.var(ddof=1)) * per_problem / (mean * (1 - mean))
    effective = problems * per_problem / min(max(effect, 1.0), per_problem)
    return wilson(mean * effective, effective)


def resampled_sums(columns: Numbers, resamples: int = RESAMPLES, seed: int = 0) -> Numbers:
    """Return the sums of columns over problems that are drawn with replacement, ``[resamples, columns]``.

    All columns see the same problems, so what is worked out from several of them is paired.

    Args:
        columns: a row for each problem, ``[problems, columns]``.
        resamples: how many draws.
        seed: of the draws.

    Source: Efron, Annals of Statistics 7 (1979).

    Example:
        >>> resampled_sums(np.ones((5, 2)), resamples=3)[0].tolist()
        [5.0, 5.0]
    """
    problems = len(columns)
    at_once = max(1, _MAX_WEIGHTS // problems)
    if resamples <= at_once:
        return _weights(problems, resamples, seed) @ columns
    generator = np.random.default_rng(seed)
    parts = [
        _draw(generator, problems, min(at_once, resamples - start)) @ columns for start in range(0, resamples, at_once)
    ]
    return np.concatenate(parts)


@lru_cache(maxsize=2)
def _weights(problems: int, resamples: int, seed: int) -> Numbers:
    return _draw(np.random.default_rng(seed), problems, resamples)


def _draw(generator: np.random.Generator, problems: int, resamples: int) -> Numbers:
    """Return how often each problem is drawn, ``[resamples, problems]``."""
    drawn = generator.integers(0, problems, size=(resamples, problems))
    drawn += np.arange(resamples)[:, None] * problems
    return np.bincount(drawn.ravel(), minlength=resamples * problems).reshape(resamples, problems).astype(np.float64)


def percentiles(resampled: Numbers) -> tuple[float, float]:
    """Return the ends of the interval that the middle 95 % of resampled values span."""
    low, high = np.percentile(resampled, _LEVELS)
    return float(low), float(high)
