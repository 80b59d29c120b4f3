"""Typical acceptance: keep what is not too unlikely for how uncertain the target is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, Rule, most_likely, probability_of, round_to
from cactus_decoding.core.types import Verdict


def _spelled(looseness: float, recovery: str) -> str:
    threshold = 1 / looseness
    return f"typical:threshold={round_to(threshold)},alpha={round_to(math.sqrt(threshold))},recovery={recovery}"


@dataclass(frozen=True)
class Typical(Rule):
    """Accept n iff q(n) > min(threshold, alpha * exp(-H(q))), whatever the draft thought of it.

    Nothing bounds the distance to the target: among accepted tokens the emitted distribution is the *draft's*.

    Source: Medusa, Cai et al. (arXiv 2401.10774).

    Example:
        >>> Typical(threshold=0.3).judge(torch.tensor([0.2, 0.8]), None, torch.tensor([0, 1])).relaxed_prob
        tensor([1., 1.], dtype=torch.float64)
    """

    threshold: Annotated[float, Setting("hard floor on a token's probability", "probability", ge=0, le=1)] = 0.09
    alpha: Annotated[
        float, Setting("factor on e^−entropy, the other floor; Medusa uses √threshold", "factor", ge=0, lt=math.inf)
    ] = 0.3
    recovery: Annotated[
        Literal["greedy", "sample"],
        Setting("what follows a rejection: the target's most likely token, as in Medusa, or a draw from the target"),
    ] = "greedy"

    name = "typical"
    title = "Typical acceptance"
    kind = "truncation"
    summary = "Keep what is not too unlikely for how uncertain the target is."
    presets = (Preset("typical", "None: what it accepts is distributed as the draft's.", "to compare with Medusa"),)
    families = (
        Family("typical", "typical, greedy recovery", lambda x: _spelled(x, "greedy"), 1.05, 1e6),
        Family("typical_sample", "typical, sampled recovery", lambda x: _spelled(x, "sample"), 1.05, 1e6),
    )
    support_only = True

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return 1 for tokens above the floor and 0 below, and an infinite s: recovery ignores the draft."""
        rows = target_probs.double()
        entropy = -torch.xlogy(rows, rows).sum(-1, keepdim=True)
        floor = (self.alpha * (-entropy).exp()).clamp(max=self.threshold)
        accepted = probability_of(target_probs, token_ids) > floor
        endless = torch.full(token_ids.shape, math.inf, dtype=torch.float64, device=rows.device)
        return Verdict(accepted.double(), endless, None if self.recovery == "sample" else most_likely(target_probs))
