"""95 % intervals over problems: exact for scores, approximate for their differences, the bootstrap for the rest."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cactus_decoding.core.extras import needing

Numbers = NDArray[np.float64]

INTERVAL_TAIL = 0.025
"""The probability that an interval lies above the truth, and likewise below it."""
FEWEST_PROBLEMS = 6
"""Of fewer problems (or timings) even the whole range misses the median more often than in 5 %: 2 * 0.5**5 > 0.05."""
RESAMPLES = 4000
_MAX_WEIGHTS = 2**23
"""Weights that are held in memory at once."""


class Interval(NamedTuple):
    """A value and the ends of its 95 % interval, NaN if there are too few problems to tell."""

    value: float
    low: float
    high: float

    @property
    def has_ends(self) -> bool:
        """Whether there is an interval; there is none for a small sample, or a value known by definition."""
        return not math.isnan(self.low)

    def shown(self, digits: int, to: str = " to ", scale: float = 1.0) -> str:
        """Return the value, scaled, and the ends in brackets if there are any."""
        value, low, high = (f"{scale * each:.{digits}f}" for each in self)
        return f"{value} ({low}{to}{high})" if self.has_ends else value


def proportion(right: float, answers: float, tail: float = INTERVAL_TAIL) -> Interval:
    """Return a proportion with its exact interval, which covers the truth at least as often as it says.

    ``right`` need not be whole where ``answers`` is an effective number; ``tail`` is the probability that the truth may
    lie beyond each end.

    Source: Clopper and Pearson, Biometrika 26 (1934).
    """
    low = 0.0 if right <= 0 else beta_quantile(tail, right, answers - right + 1)
    high = 1.0 if right >= answers else beta_quantile(1 - tail, right + 1, answers - right)
    return Interval(right / answers, low, high)


def clustered_proportion(shares: Numbers, per_problem: int, tail: float = INTERVAL_TAIL) -> Interval:
    """Return a proportion with its interval where each problem was answered several times.

    Answers to one problem are alike, so they count for fewer: the number of answers is divided by the design effect,
    the variance of the mean over problems relative to that of as many independent answers. It is kept between 1 and
    ``per_problem``; if all problems are alike, they count for one answer each.

    ``shares`` are the shares of right answers to each problem, ``[problems]``, of ``per_problem`` answers each.

    Source: Korn and Graubard, Survey Methodology 24 (1998).
    """
    problems, mean = len(shares), float(shares.mean())
    effect = float(per_problem)
    if problems > 1 and 0 < mean < 1:
        effect = float(shares.var(ddof=1)) * per_problem / (mean * (1 - mean))
    effective = problems * per_problem / min(max(effect, 1.0), per_problem)
    return proportion(mean * effective, effective, tail)


def paired_difference(differences: Numbers, per_problem: int = 1) -> Interval:
    r"""Return the mean difference of two scores on the same problems, with an interval that ties do not close.

    The interval is approximate: it combines two exact ones. With g and l the shares of problems that were gained and
    lost, and their exact intervals, the lower end is

    .. math:: g - l - \sqrt{(g - g_{low})^2 + (l_{high} - l)^2 + 2 r (g - g_{low})(l_{high} - l)}

    where r is minus the correlation of the two, :math:`\sqrt{gl / ((1 - g)(1 - l))}` with one problem more of each. The
    upper end mirrors it. Where n problems all agree the ends are ±(1 - 0.025**(1/n)).

    ``differences`` of each problem's scores are in [-1, 1], ``[problems]``.

    Source: Newcombe, Statistics in Medicine 17 (1998), 2635; Zou and Donner, Statistics in Medicine 27 (2008).
    """
    problems = len(differences)
    gained = clustered_proportion(differences.clip(min=0), per_problem)
    lost = clustered_proportion((-differences).clip(min=0), per_problem)
    odds = [(each.value * problems + 1) / ((1 - each.value) * problems + 1) for each in (gained, lost)]
    against = min(1.0, math.sqrt(odds[0] * odds[1]))

    def reach(first: float, second: float) -> float:
        return math.sqrt(first**2 + second**2 + 2 * against * first * second)

    value = float(differences.mean())
    low = value - reach(gained.value - gained.low, lost.high - lost.value)
    high = value + reach(gained.high - gained.value, lost.value - lost.low)
    return Interval(value, max(-1.0, low), min(1.0, high))


def problems_to_show(drop: float) -> int:
    """Return how many problems show that a score drops by at most ``drop`` if all of them agree."""
    return 1 if drop >= 1 else math.ceil(math.log(INTERVAL_TAIL) / math.log1p(-drop))


def check_scipy() -> None:
    with needing("intervals of proportions need scipy", "report"):
        import scipy.special  # noqa: F401


def beta_quantile(chance: float, first: float, second: float) -> float:
    check_scipy()
    from scipy.special import betaincinv

    return float(betaincinv(first, second, chance))


def resampled_sums(columns: Numbers, resamples: int = RESAMPLES, seed: int = 0) -> Numbers:
    """Return the sums of columns over problems that are drawn with replacement, ``[resamples, columns]``.

    All columns see the same problems, so what is computed from several of them is paired.

    Source: Efron, Annals of Statistics 7 (1979).
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


def resampled_medians(columns: Numbers) -> Numbers:
    """Return medians of columns over rounds drawn with replacement, ``[RESAMPLES, columns]``; the seed is fixed.

    Example:
        >>> resampled_medians(np.ones((5, 2)))[0].tolist()
        [1.0, 1.0]
    """
    drawn = np.random.default_rng(1).integers(0, len(columns), size=(RESAMPLES, len(columns)))
    return np.stack([np.median(column[drawn], axis=1) for column in columns.T], axis=1)


def bootstrapped(value: float, resampled: Numbers, sampled: int) -> Interval:
    """Return a value with the interval that the middle 95 % of its resampled values span.

    There is no interval if ``sampled``, the number of problems or timings, is too small, or if all resampled values are
    the same: what no draw varies may still vary. Values that are not finite are left out.
    """
    finite = resampled[np.isfinite(resampled)]
    if sampled < FEWEST_PROBLEMS or not len(finite) or np.ptp(finite) <= 1e-12 * np.abs(finite).max():
        return Interval(value, math.nan, math.nan)
    low, high = np.percentile(finite, (100 * INTERVAL_TAIL, 100 * (1 - INTERVAL_TAIL)))
    return Interval(value, float(low), float(high))


def ratio_of_sums(above: ArrayLike, below: ArrayLike) -> Interval:
    """Return sum over sum, and its interval over problems, because positions of one answer are alike.

    Both are a sum for each problem, ``[problems]``.

    Example:
        >>> ratio_of_sums([1.0, 2.0], [2.0, 4.0])  # two problems are too few to tell
        Interval(value=0.5, low=nan, high=nan)
    """
    columns = np.stack([above, below], axis=1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        total, sums = columns.sum(0), resampled_sums(columns)
        value = float(total[0] / total[1])
        if not math.isfinite(value):
            return Interval(value, value, value)
        return bootstrapped(value, sums[:, 0] / sums[:, 1], len(columns))
