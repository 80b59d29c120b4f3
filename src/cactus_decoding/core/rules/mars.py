"""Margin-aware acceptance: at temperature 0, keep the second choice where the logits of both are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, GreedyRule, Preset, needs_place, round_to
from cactus_decoding.core.rules.relaxed_greedy import RelaxedGreedy


@dataclass(frozen=True)
class Mars(GreedyRule):
    r"""Accept n iff it is most likely, or second and the logits z of both are alike; recover the most likely token.

    .. math:: z_{(2)} > ratio \cdot z_{(1)}, \qquad z = \log q - \operatorname{mean}_{q(i) > 0} \log q(i)

    with q *before* temperature. The paper takes a ratio of 0.9 of raw logits, which changes if a constant is added to
    all logits, though q does not. Here logits are counted from their mean, or with ``logits=raw`` taken as the model
    gave them. What is given up is at most :math:`(1 - ratio)\, z_{(1)}` nats.

    Source: Song et al., "MARS: margin-aware verification" (arXiv 2601.15498).

    Example:
        >>> q = torch.tensor([0.5, 0.4, 0.1, 0.001])
        >>> Mars(ratio=0.8).judge(q, None, torch.tensor([0, 1, 2])).relaxed_prob.tolist()
        [1.0, 1.0, 0.0]
    """

    ratio: Annotated[float, Setting("of the logits of the two likeliest; 1 is greedy decoding", "ratio", ge=0, le=1)]
    logits: Annotated[Literal["mean", "raw"], Setting("counted from their mean, or as the model gave them")] = "mean"

    name = "mars"
    title = "Margin-aware (MARS)"
    kind = "truncation"
    summary = "At temperature 0, keep the second choice where the logits of both are alike."
    presets = (
        Preset(
            "mars:ratio=0.9",
            "For temperature 0: no token but the second is kept; nothing about the nats that it gives up.",
            "to compare",
        ),
    )
    families = (Family("mars", "MARS", lambda x: f"mars:ratio={round_to(1 - x)!r}", 0.001, 1.0),)

    def bind_position(self, remaining: int, greatest_logit: float) -> GreedyRule:
        """Return the rule with the margin that raw logits imply: z(2) > ratio z(1) iff z(1) - z(2) < (1 - ratio) z(1).

        >>> round(Mars(ratio=0.75, logits="raw").bind_position(1, 4.0).margin, 12)
        1.0
        """
        margin = max((1 - self.ratio) * greatest_logit, 0.0)
        return RelaxedGreedy(math.nextafter(margin, 0.0), top=2) if self.logits == "raw" else self

    def keeps(self, target_probs: Tensor, token_ids: Tensor) -> Tensor:
        if self.logits == "raw":
            raise needs_place(self)
        logits = target_probs.double().log()
        held = target_probs > 0
        mean = torch.where(held, logits, 0.0).sum(-1, keepdim=True) / held.sum(-1, keepdim=True)
        first, second = (logits.topk(min(2, logits.shape[-1]), dim=-1).values - mean)[..., [0, -1]].split(1, -1)
        is_second = logits.gather(-1, token_ids) - mean >= second
        kept: Tensor = is_second & (second > self.ratio * first) & (self.ratio < 1)
        return kept
