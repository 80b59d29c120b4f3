"""The clamped ratio of one row: both bounds in a few passes over the vocabulary, without a sort."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cactus_decoding.divergences.roots import find_root

_CLOSE = 3e-15
"""How far sum h may be from 1: a few roundings of a sum of 150,000 terms."""
_CLOSE_KL = 4e-12, 1e-16
"""How much of a cap on the KL may be left unspent: a share of it, and what the sum's rounding hides."""
_ENDLESS = 1e290
"""A ratio above every clamp."""
_USUAL_SLOPE = 4.0, 0.2
"""d log(gain / loss) / d lo, and d sqrt(KL) / d width, for rows like a language model's: only where to look first."""


class ClampedRow:
    r"""Finds where h = clamp(p, q e^lo, q e^(lo + width)) sums to 1, and the width at which KL(h || q) reaches a cap.

    With r = p / q, tokens below the clamp gain :math:`\sum q (e^{lo} - r)_+` and those above it lose
    :math:`\sum q (r - e^{lo + width})_+`; gain and loss must agree (but for what p lacks of summing to 1 on the
    support of q). The logarithm of their quotient is nearly a straight line in lo, and neither is a difference of
    close numbers.

    Args:
        target_probs: q, ``[support]``, float64, all positive.
        draft_probs: p of the same tokens, ``[support]``, float64; it sums to 1, or to 2 beside tokens that are proposed
            in any case, on which it is the most that they can have.

    Example:
        >>> q, p = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.9, 0.1]).double()
        >>> round(math.exp(ClampedRow(q, p).lower(math.log(3))), 12)
        0.5
    """

    def __init__(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        missing = 1 - draft_probs.sum().item()
        ratios = draft_probs / target_probs
        if len(ratios) and ratios.amax() > _ENDLESS:  # q times the bound is nothing: all of p is lost
            kept = ratios <= _ENDLESS
            missing += draft_probs[~kept].sum().item()
            ratios, target_probs = ratios[kept], target_probs[kept]
        self.target, self.ratios = target_probs, ratios
        self._clamped = torch.empty_like(ratios)
        self._min_log_ratio = _log(ratios.amin().item()) if len(ratios) else 0.0
        if missing < -0.5:  # beside fixed tokens: what p has too much of is lost below the least ratio
            self._min_log_ratio = -math.inf
        self._slope = _USUAL_SLOPE[0]
        self._gained, self._lost = max(-missing, 0.0), max(missing, 0.0)

    def lower(self, width: float, start: float | None = None) -> float:
        """Return lo in [-width, 0] for a width in nats; ``start`` is a guess."""
        before, stretch = (math.nan, math.nan), math.exp(width)

        def imbalance(low: float) -> tuple[float, bool]:
            nonlocal before
            clamped = torch.clamp(self.ratios, math.exp(low), math.exp(low) * stretch, out=self._clamped)
            change = clamped.sub_(self.ratios)
            net = torch.dot(self.target, change).item()
            gross = torch.dot(self.target, change.abs_()).item()
            gain, loss = (gross + net) / 2 + self._gained, (gross - net) / 2 + self._lost
            value = _log(gain) - _log(loss)
            slope = (value - before[1]) / (low - before[0]) if low != before[0] else math.nan
            if 1 < slope < 100:  # a sound one will be about right for the next width too
                self._slope = slope
            before = low, value
            return value, abs(gain - loss) <= _CLOSE

        floor = min(max(-width, self._min_log_ratio), 0.0)  # below the least ratio nothing is gained
        start = floor / 2 if start is None else min(max(start, floor), 0.0)
        return find_root(imbalance, floor, 0.0, start, self._slope)[1]

    def max_width(self, max_kl: float, limit: float) -> tuple[float, float]:
        """Return lo and the largest width up to ``limit`` at which KL(h || q) <= ``max_kl``."""
        log_ratios, logs = self.ratios.log(), torch.empty_like(self.ratios)
        lows = {0.0: 0.0}
        spare = _CLOSE_KL[0] * max_kl + _CLOSE_KL[1]

        def spent(width: float, start: float) -> float:
            low = lows[width] = self.lower(width, start)
            h = torch.clamp(self.ratios, math.exp(low), math.exp(low) * math.exp(width), out=self._clamped).mul_(
                self.target
            )
            return torch.dot(h, torch.clamp(log_ratios, low, low + width, out=logs)).item()

        if spent(limit, -limit) <= max_kl:
            return lows[limit], limit
        del lows[limit]  # too far from the others to guess by

        def overspent(width: float) -> tuple[float, bool]:
            near = sorted(lows, key=lambda known: abs(known - width))[:2]
            slope = (lows[near[0]] - lows[near[1]]) / (near[0] - near[1]) if len(near) == 2 else -0.5
            kl = spent(width, lows[near[0]] + (width - near[0]) * slope)
            # square roots: nearly a straight line where the width is small; halfway into the spare, to stay below
            return math.sqrt(max(kl, 0.0)) - math.sqrt(max(max_kl - spare / 2, 0.0)), 0 <= max_kl - kl <= spare

        start = min(math.sqrt(max_kl) / _USUAL_SLOPE[1], limit)
        width = find_root(overspent, 0.0, limit, start, _USUAL_SLOPE[1])[0]  # the end that does not overspend
        return lows[width], width


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
