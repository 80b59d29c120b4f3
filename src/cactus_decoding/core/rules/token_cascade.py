"""Token-specific speculative cascades: keep drafted tokens that the models favour enough, else draw from the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, RowRule, probability_of, round_to
from cactus_decoding.core.rules.gate import BEFORE, before_temperature, on_rows
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class TokenCascade(RowRule):
    r"""Keep the drafted token n if it is among the accepted ones, and else draw from the target.

    .. math:: p(n) \ge \max q - \alpha \ (\text{v1}), \quad q(n) \ge \max q - \alpha \ (\text{v2}), \quad
        q(n) \ge (1 - \alpha) \max q \ (\text{v3})

    What is emitted is p on the accepted tokens A, plus q times the draft's mass outside of A: exactly the paper's
    distribution. After a rejection this rule draws anew. The paper's coupling, ``coupling=paper``, instead also keeps
    min(p, h) of the other tokens: it emits the same distribution and accepts more. Where no token is accepted, the test
    is the lossless one.

    Source: Narasimhan et al. (arXiv 2405.19261), equations 13 to 15 in the numbering of their notebook. The notebook
    compares distributions from before temperature: to do the same, give the request's temperature as ``temperature``.
    With v2 and v3 any alpha below 0 is lossless, and 0 accepts the most likely token.

    Example:
        >>> q, p = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.3, 0.5])
        >>> TokenCascade(alpha=0.5).judge(q, p, torch.arange(3)).relaxed_prob.tolist()
        [1.0, 1.0, 0.0]
    """

    alpha: Annotated[float, Setting("the larger, the more tokens pass; -2 is lossless", ge=-2, le=100)]
    version: Annotated[
        Literal["v3", "v2", "v1"],
        Setting("what is compared with the target's greatest probability: by factor, by difference, or the draft's"),
    ] = "v3"
    coupling: Annotated[
        Literal["draw", "paper"],
        Setting("draw other tokens from the target, or keep what the row that is emitted allows"),
    ] = "draw"
    temperature: Annotated[float, BEFORE] = 1.0

    name = "token_cascade"
    title = "Token-specific cascade"
    kind = "truncation"
    summary = "Keep drafted tokens near the target's most likely one, and else draw from the target."
    presets = (Preset("token_cascade:alpha=0.5", "None: what it accepts is distributed as the draft's.", "to compare"),)
    families = (
        Family("token_cascade_v3", "cascade, token v3", lambda x: f"token_cascade:alpha={x!r}", 0.01, 1.0),
        Family("token_cascade_v2", "cascade, token v2", lambda x: f"token_cascade:alpha={x!r},version=v2", 0.01, 1.0),
        Family(
            "token_cascade_v1",
            "cascade, token v1",
            lambda x: f"token_cascade:alpha={round_to(x - 1)!r},version=v1",
            0.02,
            2.0,
        ),
    )
    support_only = True

    @property
    def draws(self) -> bool:
        return self.coupling == "draw"

    def _accepted(self, q: Tensor, p: Tensor) -> Tensor:
        q, p = (before_temperature(rows, self.temperature) for rows in (q, p))
        floor = q.amax(-1, keepdim=True)
        floor = floor * (1 - self.alpha) if self.version == "v3" else floor - self.alpha
        return ((p if self.version == "v1" else q) >= floor) & (q > 0)

    def _emitted(self, q: Tensor, p: Tensor) -> Tensor:
        kept = torch.where(self._accepted(q, p), p, 0.0)
        return kept + (1 - kept.sum(-1, keepdim=True)).clamp(min=0) * q

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h in float64."""
        return on_rows(self._emitted, target_probs, draft_probs, torch.empty(0))

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return 1 for accepted tokens, 0 for others and an infinite s; q(n) and 1 where no token is accepted.

        With the paper's coupling they are h(n), 1 and h.
        """
        if not self.draws:
            return super().judge(target_probs, draft_probs, token_ids)
        passing = on_rows(self._accepted, target_probs, draft_probs, token_ids)
        if draft_probs is None:
            some = passing.any(-1)
            kept = passing.expand(*token_ids.shape, -1).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
        else:
            some, kept = passing.any(-1, keepdim=True), passing.gather(-1, token_ids)
        relaxed_prob = torch.where(some, kept.double(), probability_of(target_probs, token_ids))
        return Verdict(relaxed_prob, torch.where(some, math.inf, torch.ones_like(relaxed_prob)))
