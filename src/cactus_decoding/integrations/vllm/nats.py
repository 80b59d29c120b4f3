"""What a position costs, in nats: given the drafted token, and averaged over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.auditing import audit
from cactus_decoding.integrations.vllm.relaxed_logits import Relaxed
from cactus_decoding.rules.base import Rule

_MOST_ELEMENTS = 1 << 23


@dataclass(frozen=True, eq=False)
class Spending:
    """What some positions cost if they are relaxed; float64, ``[positions]`` each.

    Attributes:
        conditional: KL(h || q) for the h of the drafted token, exact.
        emitted: KL of what is emitted to q, averaged over the drafted token; infinite where it was not asked for.
        audited: indices of the positions whose ``emitted`` was asked for as a sample.
        lossless_acceptance, acceptance: probability of accepting the drafted token, without and with the rule.
    """

    conditional: Tensor
    emitted: Tensor
    audited: Tensor | None
    lossless_acceptance: Tensor
    acceptance: Tensor


RowsOf = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Gives the target's logits, not relaxed, and the draft's probabilities of the rows of some indices."""


def spending(
    rule: Rule,
    relaxed: Relaxed,
    draft_token_probs: Tensor | None,
    rows_of: RowsOf,
    needed: Tensor | None,
    audited: Tensor | None,
) -> Spending:
    """Return what some rows of a step cost.

    Args:
        rule: an expressible acceptance rule.
        relaxed: what it makes of the rows.
        draft_token_probs: p(n) of the drafted tokens, ``[rows]``; None for a deterministic draft.
        rows_of: gives whole rows where it takes those to tell.
        needed: indices of rows whose ``emitted`` must be known, or None.
        audited: those among them that are a sample, or None.
    """
    q, h, p = relaxed.target_prob, relaxed.relaxed_prob, draft_token_probs
    if p is None:
        return Spending(relaxed.conditional, relaxed.conditional, audited, q, h)
    kept = [torch.where(p > 0, (x / p).clamp(max=1.0), 0.0) for x in (q, h)]
    if relaxed.logits.dim() == 2:  # h is the same for every drafted token
        return Spending(relaxed.conditional, relaxed.conditional, audited, *kept)
    emitted = torch.full_like(q, torch.inf)
    if needed is not None:
        emitted[needed] = _audited(rule, *rows_of(needed))
    return Spending(relaxed.conditional, emitted, audited, *kept)


def _audited(rule: Rule, logits: Tensor, draft_probs: Tensor) -> Tensor:
    """Return the audit's KL; infinite where rows are no distributions, which must not end a worker."""
    size = max(1, _MOST_ELEMENTS // logits.shape[-1])
    try:
        parts = [
            audit(rule, some.double().softmax(-1), probs.double() / probs.double().sum(-1, keepdim=True)).kl
            for some, probs in zip(logits.split(size), draft_probs.split(size), strict=True)
        ]
    except ValueError:
        return torch.full(logits.shape[:1], torch.inf, dtype=torch.float64, device=logits.device)
    return torch.cat([part.clamp(min=0) for part in parts]) if parts else logits.new_zeros(0, dtype=torch.float64)
