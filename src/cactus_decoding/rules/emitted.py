"""Rules made of rows: one that emits given rows, one that is asked about others, and h beside fixed tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.rules.base import Rule, probability_of
from cactus_decoding.types import AcceptanceRule, Verdict


@dataclass(frozen=True, eq=False)
class EmittedRows:
    """The rule that emits given rows h: accept n with h(n), recover from (h - p)+.

    Attributes:
        rows: h at each position, ``[..., vocabulary]`` in float64.
    """

    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return h(n) and 1: recovery starts from h itself."""
        relaxed_prob = probability_of(self.rows.expand_as(target_probs), token_ids)
        return Verdict(relaxed_prob, torch.ones_like(relaxed_prob))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from h."""
        return self.rows.expand_as(target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h."""
        return self.rows.expand_as(target_probs)


@dataclass(frozen=True, eq=False)
class JudgedOn:
    """A rule that is asked about other rows than those that are sampled from.

    Attributes:
        rule: the rule.
        rows: what it judges on, ``[..., vocabulary]``.
    """

    rule: AcceptanceRule
    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the rule's two numbers on its rows."""
        return self.rule.judge(self.rows.expand_as(target_probs), draft_probs, token_ids)

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from the rows that are sampled from."""
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        """Say that there are no rows that are emitted whatever is drafted."""
        return None


def relaxed_target_beside(
    rule: AcceptanceRule,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    drawn_probs: Tensor,
    fixed_token_ids: Tensor,
) -> Tensor | None:
    """Return h where some tokens are proposed in any case; see `Rule.relaxed_target_beside`, which not every rule has.

    Example:
        >>> from cactus_decoding.rules import ClampedRatio
        >>> q, drawn = torch.tensor([0.25, 0.25, 0.5]).double(), torch.tensor([0.0, 0.2, 0.8]).double()
        >>> relaxed_target_beside(ClampedRatio(width=0.7), q, None, drawn, torch.tensor([0]))[0] > 0.25
        tensor(True)
    """
    if isinstance(rule, Rule):
        return rule.relaxed_target_beside(target_probs, draft_probs, drawn_probs, fixed_token_ids)
    return rule.relaxed_target(target_probs, drawn_probs)
