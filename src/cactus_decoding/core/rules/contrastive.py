"""Contrastive decoding: emit what the target favours more than the draft does, among plausible tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Preset, RowRule


@dataclass(frozen=True)
class Contrastive(RowRule):
    r"""Emit a contrast of the two models' logits, among the tokens that the target finds plausible.

    .. math:: h(x) \propto q(x)^{1+\beta}\, p(x)^{-\beta} \ \text{ where } q(x) \ge \alpha \max q, \text{ else } 0

    That is the softmax of (1 + beta) times the target's logits minus beta times the draft's, both after temperature. h
    does not depend on the drafted token, so it is exactly what is emitted. It lies *beyond* the target as seen from the
    draft: it accepts less than lossless sampling, and is meant to write better. A token that the draft excludes counts
    as likely as the draft's least likely one that the target allows. No ratio is bounded where ``alpha`` is 0.

    Source: Yuan et al., "Speculative contrastive decoding" (arXiv 2311.08981), with the mask of Li et al.,
    "Contrastive decoding" (arXiv 2210.15097).

    Example:
        >>> q, p = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
        >>> [round(h, 4) for h in Contrastive(beta=1.0, alpha=0.2).relaxed_target(q, p).tolist()]
        [0.8571, 0.1429, 0.0]
    """

    beta: Annotated[float, Setting("how much of the draft's logits is taken off; 0 contrasts nothing", ge=0, le=100)]
    alpha: Annotated[
        float, Setting("a plausible token is this share of the target's likeliest; 0 for all", "share", ge=0, le=1)
    ] = 0.1

    name = "contrastive"
    title = "Contrastive"
    kind = "collaboration"
    summary = "Emit what the target favours more than the draft does, among plausible tokens."
    presets = (
        Preset(
            "contrastive:beta=0.5",
            "No token below alpha × max q is emitted; nothing else. It accepts less than lossless sampling.",
            "to compare",
        ),
    )
    support_only = True
    whole_draft_row = True

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h in float64."""
        q, p = target_probs.double(), draft_probs.double()
        plausible = (q > 0) & (q >= self.alpha * q.amax(-1, keepdim=True))
        if self.beta == 0:
            kept = torch.where(plausible, q, 0.0)
            return kept / kept.sum(-1, keepdim=True) if self.alpha else q
        known = (q > 0) & (p > 0)
        least = torch.where(known, p, math.inf).amin(-1, keepdim=True)
        p = torch.where(known, p, torch.where(least.isfinite(), least, 1.0))
        scores = (1 + self.beta) * q.log() - self.beta * p.log()
        return torch.where(plausible, scores, -math.inf).softmax(-1)
