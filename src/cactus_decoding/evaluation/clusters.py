"""Ratios of sums over problems, with intervals: the positions of one answer are alike, so whole problems are drawn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 2000
_SEED = 20260401


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        """Return the three numbers, for JSON."""
        return list(self)


def resampled(problems: int) -> Tensor:
    """Return how often each bootstrap sample draws each problem, ``[RESAMPLES, problems]``; always the same draws."""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.randint(problems, (RESAMPLES, problems), generator=generator)
    counts = torch.zeros(RESAMPLES, problems, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))


def ratio_of_sums(numerator: Tensor, denominator: Tensor, draws: Tensor) -> Estimate:
    """Return sum over sum, with the percentile bootstrap's interval over problems.

    Args:
        numerator: a sum for each problem, ``[problems]``.
        denominator: likewise, such as the number of positions.
        draws: from `resampled`.

    Example:
        >>> ratio_of_sums(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]), resampled(2))
        Estimate(value=0.5, low=0.5, high=0.5)
    """
    numerator, denominator = numerator.double(), denominator.double()
    below = draws @ denominator
    samples = (draws @ numerator)[below > 0] / below[below > 0]
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = samples.quantile(ends).tolist() if samples.isfinite().all() else (float("nan"), float("nan"))
    return Estimate(float(numerator.sum() / denominator.sum()), low, high)


def sums_by(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the sum of each group's values in float64, ``[count, ...]`` for values ``[n, ...]`` and groups ``[n]``."""
    return torch.zeros((count, *values.shape[1:]), dtype=torch.float64).index_add_(0, groups.long(), values.double())
