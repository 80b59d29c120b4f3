"""Big Little rollback: at temperature 0, keep what the target does not find too surprising."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, GreedyRule, Preset, probability_of


@dataclass(frozen=True)
class BigLittle(GreedyRule):
    r"""Accept n iff the target's cross-entropy on it is at most ``rollback``, or it is most likely; recover the latter.

    .. math:: -\log q(n) \le rollback

    with q *before* temperature. No token gives up more than ``rollback`` nats against the most likely one. The paper
    also has a fallback, which ends a draft where the draft model is unsure. Here that is the draft length
    ``confidence:threshold=0.6,unsure=discard``. The published code's ``rollback`` is 5.

    Source: Kim et al., "Speculative decoding with big little decoder" (arXiv 2302.07863), and their code.

    Example:
        >>> import torch
        >>> q = torch.tensor([0.5, 0.4, 0.1])
        >>> BigLittle(rollback=1.0).judge(q, None, torch.tensor([0, 1, 2])).relaxed_prob.tolist()
        [1.0, 1.0, 0.0]
    """

    rollback: Annotated[
        float, Setting("cross-entropy above which a token is rejected; 0 is greedy decoding", "nats", ge=0, lt=math.inf)
    ]

    name = "big_little"
    title = "Big Little rollback"
    kind = "truncation"
    summary = "At temperature 0, keep what the target does not find too surprising."
    presets = (
        Preset(
            "big_little:rollback=2.0",
            "For temperature 0: no token gives up more than rollback nats of log-probability.",
            "to compare",
        ),
    )
    families = (Family("big_little", "Big Little rollback", lambda x: f"big_little:rollback={x!r}", 0.05, 20.0),)

    def keeps(self, target_probs: Tensor, token_ids: Tensor) -> Tensor:
        return (-probability_of(target_probs, token_ids).log() <= self.rollback) & (self.rollback > 0)
