"""Top-k acceptance: keep whatever is among the target's k most likely tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, Rule, probability_of
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class TopK(Rule):
    """Accept n iff it is among the k most likely tokens under q, ties included, and q(n) > 0.

    Nothing bounds the distance to the target: among the k tokens the emitted distribution is the *draft's*.

    Source: the top-k baseline of Hao and Mou (arXiv 2604.04987).

    Example:
        >>> TopK(k=1).judge(torch.tensor([0.2, 0.8]), None, torch.tensor([0])).relaxed_prob.item()
        0.0
    """

    k: Annotated[int, Setting("how many tokens pass", "tokens", ge=1)]
    residual: Annotated[
        Literal["sample", "mask"],
        Setting(
            "what follows a rejection: a draw from the k by the target, or with equal chances, as in the paper's code"
        ),
    ] = "sample"

    name = "top_k"
    title = "Top-k acceptance"
    kind = "truncation"
    summary = "Keep whatever is among the target's k most likely tokens."
    presets = (Preset("top_k:k=5", "None: what it accepts is distributed as the draft's.", "to compare"),)
    families = (
        Family("top_k", "top-k, sampled recovery", lambda x: f"top_k:k={int(x)}", 1, 1000, whole=True),
        Family("top_k_mask", "top-k, mask recovery", lambda x: f"top_k:k={int(x)},residual=mask", 1, 1000, whole=True),
    )
    support_only = True

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return 1 for tokens among the k and 0 for others, and an infinite s: recovery ignores the draft."""
        q = probability_of(target_probs, token_ids)
        floor = target_probs.topk(min(self.k, target_probs.shape[-1]), dim=-1).values[..., -1:]
        accepted = (q >= floor.double()) & (q > 0)
        return Verdict(accepted.double(), torch.full_like(q, math.inf), self._recovery(target_probs, floor))

    def _recovery(self, target_probs: Tensor, floor: Tensor) -> Tensor:
        """Return the target's k tokens, or those with equal weights; normalised, in float64."""
        kept = (target_probs >= floor) & (target_probs > 0)
        # float64: in half precision the sum of many weights overflows, and the division rounds
        weights = torch.where(kept, target_probs.double(), 0.0) if self.residual == "sample" else kept.double()
        return weights / weights.sum(-1, keepdim=True)
