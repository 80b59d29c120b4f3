"""Rows of probabilities: making them sum to 1 in float64, and how far one is from another."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_UNIT = 2.0**-53
"""How much adding one number to a sum may be off in float64, as a part of the sum."""


def normalised(rows: Tensor) -> Tensor:
    """Return rows divided by their sums, in float64.

    A softmax in float32 over 150,000 tokens misses 1 by up to 1e-5. Tokens are drawn in proportion to it, so costs are
    about the normalised row.
    """
    wide = rows.to(torch.float64, copy=True)
    return wide.div_(total(wide).unsqueeze(-1))


def total(rows: Tensor) -> Tensor:
    """Return what to divide rows by so that they sum to 1, ``[...]`` in float64.

    It is their sum, or 1 where the sum differs from 1 only by rounding: dividing would just round them again.
    """
    sums = rows.sum(-1, dtype=torch.float64)
    return torch.where((sums - 1).abs() <= rows.shape[-1] * _UNIT, 1.0, sums)


def without(rows: Tensor, token_ids: Tensor) -> Tensor:
    """Return rows without some tokens, divided by what is left, in float64; zeros where nothing is left.

    It is the distribution of a token that is drawn beside others which are proposed in any case.
    """
    rest = rows.to(torch.float64, copy=True).scatter_(-1, token_ids, 0.0)
    left = rest.sum(-1, keepdim=True)
    return rest.div_(torch.where(left > 0, left, 1.0))


def log_(numbers: Tensor) -> Tensor:
    """Take logarithms of positive numbers on the CPU, in place, by NumPy: with AVX-512 in a third of the time."""
    values = numbers.numpy()
    np.log(values, out=values)
    return numbers


def kl_of_rows(rows: Tensor, target_probs: Tensor) -> Tensor:
    r"""Return KL(row || target row) in nats, ``[...]`` in float64; infinite where a row has what the target excludes.

    .. math:: \sum_x h(x) \log\frac{h(x)}{q(x)} - h(x) + q(x)

    For rows that sum to 1 the last two terms cancel. With them no term is negative, and rows whose sums differ by
    :math:`\epsilon` cost about :math:`\epsilon^2 / 2` more, where they would cost :math:`\epsilon` less without.
    """
    h, q = rows.double(), target_probs.double()
    slack = q.sum(-1) - h.sum(-1)
    if h.device.type == "cpu":
        quotient = h / q
        if not bool(h.amin() > 0):
            quotient.masked_fill_(h == 0, 1.0)
        logs = log_(quotient)
        kl = (torch.dot(logs, h) if h.dim() == 1 else logs.mul_(h).sum(-1)) + slack
        if bool(kl.isfinite().all()):
            return kl.clamp(min=0)  # rounding can take 0 below it
    # a difference of logs, because the quotient overflows where the target's probability is subnormal
    kl = torch.where(h > 0, h * (h.log() - q.log()), 0.0).sum(-1) + slack
    return kl.clamp(min=0)
