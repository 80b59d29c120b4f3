"""Rows sorted by the ratio of draft to target, with running sums: after one sort, all else is looked up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_BINS, _MANY = 65_536, 4096


class RatioOrder(NamedTuple):
    """Tokens by ascending ratio p / q, infinite where q = 0, with sums over the tokens before each place.

    ``ratios`` and ``order`` are ``[..., vocabulary]``; the sums are ``[..., vocabulary + 1]``. ``target_from`` is the
    sum of q over each place and those after it.
    """

    ratios: Tensor
    order: Tensor
    draft_before: Tensor
    target_before: Tensor
    target_from: Tensor

    def count_below(self, ratio: Tensor) -> Tensor:
        """Return how many tokens have a ratio below each given one, ``[..., any]``."""
        return torch.searchsorted(self.ratios, ratio.contiguous())

    def count_up_to(self, ratio: Tensor) -> Tensor:
        """Return how many tokens have a ratio of at most each given one, ``[..., any]``."""
        return torch.searchsorted(self.ratios, ratio.contiguous(), right=True)


def order_by_ratio(target_probs: Tensor, draft_probs: Tensor) -> RatioOrder:
    q, p = target_probs.double(), draft_probs.double()
    ratios, order = likelihood_ratio(q, p).sort(-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    return RatioOrder(ratios.contiguous(), order, sums_before(p), sums_before(q), sums_from(q))


def likelihood_ratio(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Return p / q in float64: infinite only where q = 0, and finite where the quotient overflows."""
    ratio = draft_probs.double() / target_probs.double()
    return torch.where(target_probs > 0, ratio.clamp(max=torch.finfo(torch.float64).max), torch.inf)


def sums_before(values: Tensor) -> Tensor:
    """Return the sums of the values before each place and after the last: ``[..., n]`` to ``[..., n + 1]``."""
    return functional.pad(values.cumsum(-1), (1, 0))


def sums_from(values: Tensor) -> Tensor:
    """Return the sums of the values from each place on: ``[..., n]`` to ``[..., n + 1]``.

    They are added up from the end: the total less `sums_before` would have only the digits of the total.
    """
    return sums_before(values.flip(-1)).flip(-1)


def count_up_to(ascending: Tensor, values: Tensor) -> Tensor:
    """Return how many entries of ascending rows, ``[rows, m]``, are at most each value, ``[rows, n]``.

    Many values are first sorted into the bins of an even grid; only values in a bin that has entries are looked up by
    bisection.
    """
    rows, count = values.shape
    low, high = ascending[:, :1], ascending[:, -1:]
    spread = high - low
    if count < _MANY or rows > 1 or not bool((spread > 0) & spread.isfinite()):
        return torch.searchsorted(ascending, values.contiguous(), right=True)
    scale = (_BINS - 1) / spread
    # one rounded formula for both: it never decreases, so entries of lower bins are smaller, of higher bins greater
    bin_of_entry = (ascending - low).mul_(scale).int()
    bins = values.clamp(low, high).sub_(low).mul_(scale).int()
    entries = torch.bincount(bin_of_entry[0], minlength=_BINS)
    counts = torch.searchsorted(bin_of_entry[0], torch.arange(_BINS, dtype=torch.int32, device=values.device))
    result = counts.index_select(0, bins[0]).unsqueeze(0)
    shared = entries.index_select(0, bins[0]).nonzero().squeeze(1)
    result[0, shared] = torch.searchsorted(ascending[0], values[0, shared], right=True)
    return result
