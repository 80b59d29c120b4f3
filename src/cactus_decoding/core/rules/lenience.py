"""Lenience: divide the rejection threshold by a constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, RowRule, probability_of, round_to, with_rejected
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class Lenience(RowRule):
    """Accept as if the target were 1 / lenience times as sure: h(n) = q(n) / lenience, recovery from (q - lenience p)+.

    No token is emitted more than 1 / lenience times as often as by the target. What is emitted does not depend on the
    drafted token: it is min(p, q / lenience) + m (q - lenience p)+ / Z, with m the mass that is rejected and Z a sum.
    With ``residual=plain`` it recovers from (q - p)+ as lossless sampling does, and Z is that sum.

    Source: Leviathan et al. (arXiv 2211.17192), appendix on lenience. The plain residual is that of two published
    codes: the notebook of cascades (arXiv 2405.19261), and ``mentored-dec`` of "A practical investigation of
    training-free relaxed speculative decoding", whose alpha is 1 - lenience.

    Example:
        >>> Lenience(lenience=0.5).judge(torch.tensor([0.2, 0.8]), None, torch.tensor([0])).residual_scale.item()
        2.0
    """

    lenience: Annotated[float, Setting("the smaller, the more is accepted; 1 is lossless", "factor", gt=0, le=1)]
    residual: Annotated[
        Literal["scaled", "plain"], Setting("recover from q − lenience·p, or from q − p as lossless sampling does")
    ] = "scaled"

    name = "lenience"
    title = "Lenience"
    kind = "truncation"
    summary = "Accept as if the target were a constant factor more sure of every drafted token."
    presets = (
        Preset(
            "lenience:lenience=0.5",
            "No token is emitted more than 1/lenience times as often as by the target; "
            "nothing about the whole distribution.",
            "where only too frequent tokens hurt",
        ),
    )
    families = (Family("lenience", "lenience", lambda x: f"lenience:lenience={round_to(1 / x)!r}", 1.01, 1e6),)
    never_stricter = True
    support_only = True
    drafted_only = True

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        q = probability_of(target_probs, token_ids)
        return Verdict(q / self.lenience, torch.full_like(q, 1.0 if self.residual == "plain" else 1 / self.lenience))

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return what is kept, with the mass that is rejected given back in the residual's shape."""
        q, p = target_probs.double(), draft_probs.double()
        kept = torch.minimum(p, q / self.lenience)
        share = 1.0 if self.residual == "plain" else self.lenience
        return with_rejected(kept, p, (q - share * p).clamp(min=0), q)
