"""Pearson's test of a sampler against the law it should have."""

from __future__ import annotations

from scipy.stats import chi2
from torch import Tensor

FALSE_ALARM = 1e-6
"""Probability that one test rejects a right sampler (over the choice of its seed, which is fixed)."""

_LEAST_EXPECTED = 20.0  # cells with fewer expected draws are pooled: the limit law holds only for well-filled cells


def rejects(tokens: Tensor, probs: Tensor) -> bool:
    """Say whether observed ``tokens`` refute the law ``probs``, ``[cells]``; a token of probability 0 always does."""
    return rejects_counts(tokens.flatten().bincount(minlength=len(probs)), probs)


def rejects_counts(counts: Tensor, probs: Tensor) -> bool:
    """Say the same of how often each outcome was seen, ``[...]``."""
    observed, probs = counts.flatten().double(), probs.flatten().double()
    expected = probs * observed.sum()
    if (observed[probs == 0] > 0).any():
        return True
    large = expected >= _LEAST_EXPECTED
    cells = [*zip(observed[large].tolist(), expected[large].tolist(), strict=True)]
    pooled = (observed[~large].sum().item(), expected[~large].sum().item())
    if pooled[1] >= _LEAST_EXPECTED or not cells:
        cells.append(pooled)
    elif pooled[1] > 0:  # too little for a cell of its own: joined to the smallest
        smallest = min(range(len(cells)), key=lambda i: cells[i][1])
        cells[smallest] = (cells[smallest][0] + pooled[0], cells[smallest][1] + pooled[1])
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    return len(cells) > 1 and statistic > chi2.isf(FALSE_ALARM, len(cells) - 1)
