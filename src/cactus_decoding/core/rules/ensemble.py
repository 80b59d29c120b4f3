"""Static ensemble: verify against a mixture of target and draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, RowRule, draft_probability_of, probability_of
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class Ensemble(RowRule):
    """Interpolation with a fixed weight on the draft: h = weight * p + (1 - weight) * q, s = 1.

    Total variation to the target is ``weight`` times that between draft and target; KL and likelihood ratios are not
    bounded. A drafted token with q(n) = 0 is rejected, so the mass of p outside the target's support goes back to
    tokens that the target favours.

    Sources: the interpolation baseline of Hao and Mou (arXiv 2604.04987); DIVERSE (arXiv 2604.07622).

    Example:
        >>> q, p = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
        >>> Ensemble(weight=0.5).relaxed_target(q, p)
        tensor([0.7000, 0.3000], dtype=torch.float64)
    """

    weight: Annotated[float, Setting("how much of the mixture is the draft's; 0 is lossless", "share", ge=0, le=1)]

    name = "ensemble"
    title = "Static ensemble"
    kind = "collaboration"
    summary = "Verify against a fixed mixture of target and draft."
    presets = (
        Preset(
            "ensemble:weight=0.2",
            "Total variation to the target ≤ weight × that of the draft to the target; KL is unbounded.",
            "to compare",
        ),
    )
    families = (Family("ensemble", "interpolation", lambda x: f"ensemble:weight={x!r}", 1e-3, 1.0),)
    never_stricter = True
    support_only = True
    drafted_only = True
    whole_draft_row = True

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the mixture's probability of n, or 0 where the target excludes n, and s = 1."""
        q = probability_of(target_probs, token_ids)
        p = draft_probability_of(draft_probs, token_ids)
        # lerp is exact at both ends: a weight of 1 accepts every token of the target's support
        return Verdict(torch.where(q > 0, torch.lerp(q, p, self.weight), 0.0), torch.ones_like(q))

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return the mixture, with the draft's mass outside the target's support given back in the residual's shape."""
        q, p = target_probs.double(), draft_probs.double()
        deficit = (q - p).clamp(min=0)
        outside = torch.where(q > 0, 0.0, p).sum(-1, keepdim=True)
        total = deficit.sum(-1, keepdim=True)
        given_back = torch.where(total > 0, deficit / total, 0.0) * (self.weight * outside)
        return torch.where(q > 0, torch.lerp(q, p, self.weight), 0.0) + given_back
