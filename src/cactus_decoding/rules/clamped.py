"""Clamped ratio: the draft, clamped to within a constant factor of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.checks import check_number
from cactus_decoding.divergences import lift_exactly
from cactus_decoding.ratio_order import RatioOrder, order_by_ratio, sums_before
from cactus_decoding.rules.base import Rule, probability_of
from cactus_decoding.types import Verdict

_HALVINGS = 60
_WIDEST = 500.0
"""In nats: far beyond any ratio that matters, and exp of it is a finite number."""


@dataclass(frozen=True)
class ClampedRatio(Rule):
    """The rule of least divergence for its acceptance among those whose h does not depend on the drafted token.

    h = clamp(p, q e^lo, q e^hi) with lo <= 0 <= hi, hi - lo = width, and lo such that h sums to 1. It emits exactly h,
    so no token's likelihood ratio to the target exceeds e^width. With ``max_kl`` the width is instead chosen at each
    position so that KL(h || q) is at most ``max_kl`` (mentored decoding).

    Sources: for every strictly convex f-divergence and a price on it, h is optimal (see docs on the theory);
    mentored decoding, Tran-Thien (2023); all f-divergences with one sort, arXiv 2609.30474.

    Attributes:
        width: hi - lo in nats, 0 or more; 0 is lossless. Give either this or ``max_kl``.
        max_kl: cap on KL(h || q) per position in nats, 0 or more.

    Raises:
        ValueError: if both or neither are given, or one is out of range.

    Example:
        >>> q = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> p = torch.tensor([0.9, 0.1], dtype=torch.float64)
        >>> h = ClampedRatio(width=math.log(3)).relaxed_target(q, p)
        >>> [round(x, 12) for x in h.tolist()]
        [0.75, 0.25]
    """

    width: float | None = None
    max_kl: float | None = None

    name = "clamped"

    def __post_init__(self) -> None:
        """Check the parameters."""
        if (self.width is None) == (self.max_kl is None):
            raise ValueError(f"give either width or max_kl, but width is {self.width} and max_kl is {self.max_kl}")
        name = "width" if self.max_kl is None else "max_kl"
        check_number(name, getattr(self, name), 0, _WIDEST if name == "width" else math.inf, high_open=name == "max_kl")

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return min(q e^hi, max(p, q e^lo)) at n, and s = e^lo."""
        q = probability_of(target_probs, token_ids)
        if draft_probs is None:
            p, (low, high) = torch.ones_like(q), self._bounds_for_one_token(q)
        else:
            p, (low, high) = probability_of(draft_probs, token_ids), self._bounds(target_probs, draft_probs)
        return Verdict(torch.minimum(torch.maximum(p, q * low), q * high), low.expand_as(q))

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h, ``[..., vocabulary]``, in float64."""
        low, high = self._bounds(target_probs, draft_probs)
        q, p = target_probs.double(), draft_probs.double()
        return torch.minimum(torch.maximum(p, q * low), q * high)

    def _bounds(self, target_probs: Tensor, draft_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (e^lo, e^hi) of each row, ``[..., 1]``."""
        one = torch.ones((*target_probs.shape[:-1], 1), dtype=torch.float64, device=target_probs.device)
        if self.width == 0 or self.max_kl == 0:
            return one, one
        table = _Clamp(order_by_ratio(target_probs, draft_probs))
        if self.width is not None:
            width = self.width * one
        else:
            assert self.max_kl is not None
            width = table.widest(self.max_kl)
        low = table.lower_factor(width)
        return low, low * width.exp()

    def _bounds_for_one_token(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return (e^lo, e^hi) where the draft puts all its mass on a token with target probability q."""
        if self.width is not None:
            ratio = torch.full_like(q, math.exp(self.width))
        else:
            assert self.max_kl is not None
            g = lift_exactly("kl", q, self.max_kl)  # with one token to lift, the cap is Cactus's problem
            inside = (q > 0) & (q < 1)
            # infinite where g is 1 or q is tiny; limited as the width is
            ratio = torch.where(inside, (g / q) * ((1 - q) / (1 - g)), 1.0).clamp(max=math.exp(_WIDEST))
        low = 1 / (q * ratio + (1 - q))  # q low ratio + (1 - q) low = 1
        return low, low * ratio


class _Clamp:
    """Sums of clamped rows, looked up in the ratio order."""

    def __init__(self, table: RatioOrder) -> None:
        self.table = table
        self.vocabulary = table.ratios.shape[-1]
        self.in_support = table.places_below(torch.full_like(table.ratios[..., :1], torch.inf))
        draft = table.draft_before.diff(dim=-1)
        log_ratios = torch.where(table.ratios.isfinite() & (table.ratios > 0), table.ratios.log(), 0.0)
        self.draft_cost_before = sums_before(draft * log_ratios)

    def _parts(self, low: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the places where the clamp's middle begins and ends, and q below, p between, q above them."""
        table = self.table
        begin = table.places_below(low)
        end = torch.minimum(table.places_up_to(low * width.exp()), self.in_support)
        end = torch.maximum(begin, end)
        below = table.target_before.gather(-1, begin)
        between = table.draft_before.gather(-1, end) - table.draft_before.gather(-1, begin)
        above = table.target_from.gather(-1, end)
        return begin, end, below, between, above

    def lower_factor(self, width: Tensor) -> Tensor:
        """Return e^lo: halve the bracket of lo in [-width, 0], then solve the linear piece that it ends in."""
        left, right = -width, torch.zeros_like(width)
        for _ in range(_HALVINGS):
            middle = (left + right) / 2
            _, _, below, between, above = self._parts(middle.exp(), width)
            short = middle.exp() * (below + width.exp() * above) + between < 1
            left, right = torch.where(short, middle, left), torch.where(short, right, middle)
        low: Tensor = right.exp()
        _, _, below, between, above = self._parts(low, width)
        weight = below + width.exp() * above
        solved: Tensor = torch.where(weight > 0, (1 - between) / weight, low)
        # where everything lies between the bounds (h = p) the piece is flat, and any lo in it will do
        trusted = (solved > 0) & ((solved / low - 1).abs() < 1e-6)
        return torch.where(trusted, solved, low)

    def kl(self, width: Tensor) -> Tensor:
        """Return KL(h || q) of each row at a width."""
        low = self.lower_factor(width)
        begin, end, below, _, above = self._parts(low, width)
        between = self.draft_cost_before.gather(-1, end) - self.draft_cost_before.gather(-1, begin)
        high = low * width.exp()
        return torch.xlogy(low, low) * below + between + torch.xlogy(high, high) * above

    def widest(self, max_kl: float) -> Tensor:
        """Return each row's largest width with KL at most ``max_kl``, by halving; the lower end never overspends."""
        left = torch.zeros_like(self.table.ratios[..., :1])
        right = torch.full_like(left, _WIDEST)
        fits = self.kl(right) <= max_kl
        for _ in range(_HALVINGS):
            middle = (left + right) / 2
            within = self.kl(middle) <= max_kl
            left, right = torch.where(within, middle, left), torch.where(within, right, middle)
        return torch.where(fits, _WIDEST, left)
