"""Big Little rollback: at temperature 0, keep what the target does not find too surprising."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Preset, Rule, probability_of
from cactus_decoding.core.rules.family import Family
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class BigLittle(Rule):
    r"""Accept n iff the target's cross-entropy on it is at most ``rollback``, or it is most likely; recover the latter.

    .. math:: -\log q(n) \le rollback

    with q *before* temperature. No token gives up more than ``rollback`` nats against the most likely one. The paper
    also has a fallback, which ends a draft where the draft model is unsure. Here that is the draft length
    ``confidence:threshold=0.6,unsure=discard``.

    Source: Kim et al., "Speculative decoding with big little decoder" (arXiv 2302.07863), and their code.

    Attributes:
        rollback: nats, 0 or more; 0 is greedy decoding. The published code's default is 5.

    Example:
        >>> q = torch.tensor([0.5, 0.4, 0.1])
        >>> BigLittle(rollback=1.0).judge(q, None, torch.tensor([0, 1, 2])).relaxed_prob.tolist()
        [1.0, 1.0, 0.0]
    """

    rollback: Annotated[
        float,
        Field(ge=0, lt=math.inf, description="cross-entropy above which a token is rejected; 0 is greedy decoding"),
        Setting("nats"),
    ]

    name = "big_little"
    title = "Big Little rollback"
    summary = "At temperature 0, keep what the target does not find too surprising."
    presets = (
        Preset(
            "big_little:rollback=2.0",
            "For temperature 0: no token gives up more than rollback nats of log-probability.",
            "to compare",
        ),
    )
    families = (Family("big_little", "Big Little rollback", lambda x: f"big_little:rollback={x!r}", 0.05, 20.0),)
    needs_support_only = True
    scalable = ("rollback",)
    judges_untempered = True

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return 1 for tokens that are likely enough and 0 for others, and an infinite s: the draft plays no part."""
        best = token_ids == target_probs.argmax(-1, keepdim=True)
        accepted = (-probability_of(target_probs, token_ids).log() <= self.rollback) & (self.rollback > 0)
        return Verdict((accepted | best).double(), torch.full_like(accepted, math.inf, dtype=torch.float64))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return functional.one_hot(target_probs.argmax(-1), target_probs.shape[-1]).to(target_probs.dtype)
