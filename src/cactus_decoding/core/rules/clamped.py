"""Clamped ratio: the draft, clamped to within a constant factor of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from cactus_decoding.core.checks import MAX_WIDTH, short_repr
from cactus_decoding.core.declared import Setting
from cactus_decoding.core.divergences.f_divergences import lift_exactly
from cactus_decoding.core.divergences.ratio_clamp import clamp_bounds
from cactus_decoding.core.rules.base import Family, Preset, RowRule, probability_of
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class ClampedRatio(RowRule):
    """Emit the draft, clamped to within a constant factor of the target.

    h = clamp(p, q e^lo, q e^hi) with lo <= 0 <= hi, hi - lo = width, and lo such that h sums to 1. It emits exactly h,
    so no token's likelihood ratio to the target exceeds e^width. Among rules whose h does not depend on the drafted
    token, no other has a smaller divergence for the same acceptance. With ``max_kl`` the width is instead chosen at
    each position so that KL(h || q) is at most ``max_kl`` (mentored decoding).

    Sources: for every strictly convex f-divergence and a price on it, h is optimal (see docs on the theory);
    mentored decoding, Tran-Thien (2023); all f-divergences with one sort, arXiv 2609.30474.

    Raises:
        ValueError: if both or neither are given, or one is out of range.

    Example:
        >>> q = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> p = torch.tensor([0.9, 0.1], dtype=torch.float64)
        >>> h = ClampedRatio(width=math.log(3)).relaxed_target(q, p)
        >>> [round(x, 12) for x in h.tolist()]
        [0.75, 0.25]
    """

    width: Annotated[
        float | None, Setting("span of a token's log-ratio to the target; 0 is lossless", "nats", ge=0, le=MAX_WIDTH)
    ] = None
    max_kl: Annotated[
        float | None, Setting("cap on each position's KL, instead of a width; 0 is lossless", "nats", ge=0, lt=math.inf)
    ] = None

    name = "clamped"
    title = "Clamped ratio"
    kind = "collaboration"
    summary = "Emit the draft, clamped to within a constant factor of the target."
    presets = (
        Preset(
            "clamped:width=1.0",
            "Every token's ratio to its target probability stays within e^±width.",
            "to relax with temperature above 0",
        ),
        Preset(
            "clamped:max_kl=0.1",
            "KL(emitted‖target) ≤ max_kl at every position.",
            "where a bound per position is asked for (mentored decoding)",
        ),
    )
    families = (
        Family("clamped", "clamped ratio", lambda x: f"clamped:width={x!r}", 0.01, 50.0),
        Family("clamped_max_kl", "KL cap per position", lambda x: f"clamped:max_kl={x!r}", 1e-4, 20.0),
    )
    never_stricter = True
    support_only = True
    drafted_only = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.width is None) == (self.max_kl is None):
            raise ValueError(
                f"give either width or max_kl, but width is {short_repr(self.width)} and max_kl is "
                f"{short_repr(self.max_kl)}"
            )

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return min(q e^hi, max(p, q e^lo)) at n, and s = e^lo."""
        q = probability_of(target_probs, token_ids)
        if draft_probs is None:
            p, (low, high) = torch.ones_like(q), self._bounds_for_one_token(q)
        else:
            p, (low, high) = (
                probability_of(draft_probs, token_ids),
                clamp_bounds(target_probs, draft_probs, width=self.width, max_kl=self.max_kl),
            )
        return Verdict(torch.minimum(torch.maximum(p, q * low), q * high), low.expand_as(q))

    def surely_accepts(self, needed: float, target_probs: Tensor, draft_probs: Tensor | None, token_id: int) -> bool:
        """Return whether hi is certain to exceed log(needed / q(n)), which is so if h with that hi sums to less than 1.

        The sum of h rises with hi, so one evaluation decides, and the bounds need not be solved for.
        """
        q = target_probs[token_id].item()
        if draft_probs is None or self.width is None or not needed < q * math.exp(self.width):
            return False
        high = needed / q
        ratios = draft_probs.to(target_probs.dtype) / target_probs
        ratios.clamp_(high * math.exp(-self.width), high)
        # by how much float32 may miss sums of n terms in at least four lanes, and rows may miss 1;
        # NaN where a token has no probability in either row: then nothing is certain
        slack = target_probs.numel() / 4 * 2**-24 + 1e-4
        return torch.dot(ratios, target_probs).item() < 1 - slack

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        low, high = clamp_bounds(target_probs, draft_probs, width=self.width, max_kl=self.max_kl)
        q, p = target_probs.double(), draft_probs.double()
        return torch.clamp(p, q * low, q * high)

    def relaxed_target_beside(
        self, target_probs: Tensor, draft_probs: Tensor | None, drawn_probs: Tensor, fixed_token_ids: Tensor
    ) -> Tensor:
        """Return h with p infinite at the fixed tokens, so that h is q e^hi there."""
        if not fixed_token_ids.numel():
            return self.relaxed_target(target_probs, drawn_probs)
        fixed = target_probs.double().gather(-1, fixed_token_ids)
        mass = fixed.sum(-1, keepdim=True)
        # h is at most 1 on them together, so that this is as good as infinity, and takes no digits from the others
        endless = torch.where(mass > 0, fixed / mass, 0.0)
        return self.relaxed_target(target_probs, drawn_probs.double().scatter(-1, fixed_token_ids, endless))

    def _bounds_for_one_token(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return (e^lo, e^hi) where the draft puts all its mass on a token with target probability q."""
        if self.width is not None:
            ratio = torch.full_like(q, math.exp(self.width))
        else:
            assert self.max_kl is not None
            g = lift_exactly("kl", q, self.max_kl)  # with one token to lift, the cap is Cactus's problem
            inside = (q > 0) & (q < 1)
            # infinite where g is 1 or q is tiny; limited as the width is
            ratio = torch.where(inside, (g / q) * ((1 - q) / (1 - g)), 1.0).clamp(max=math.exp(MAX_WIDTH))
        low = 1 / (q * ratio + (1 - q))  # q low ratio + (1 - q) low = 1
        return low, low * ratio
