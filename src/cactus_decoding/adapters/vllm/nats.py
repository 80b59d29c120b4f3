"""What a position costs, in nats: given the drafted token, and averaged over it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.adapters.vllm.relaxed_logits import (
    changes_one_logit,
    probability_from_logits,
    relaxed_probability,
)
from cactus_decoding.audit import audit
from cactus_decoding.divergences import DIVERGENCES
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


def lift_cost(target_prob: Tensor, relaxed_prob: Tensor) -> Tensor:
    """Return KL(h || q) of rows in which one token is lifted from q(n) to h(n).

    Example:
        >>> one, half = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
        >>> round(lift_cost(half, one).item(), 6)
        0.693147
    """
    inside = (target_prob > 0) & (target_prob < 1)
    cost = DIVERGENCES["kl"].value(relaxed_prob, torch.where(inside, target_prob, 0.5))
    return torch.where(inside & (relaxed_prob > target_prob), cost.clamp(min=0), 0.0)


def row_cost(relaxed_target: Tensor, target_probs: Tensor) -> Tensor:
    """Return KL(h || q) of whole rows.

    Example:
        >>> row_cost(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
        tensor([0.6931])
    """
    ratio = torch.where(relaxed_target > 0, relaxed_target.log() - target_probs.log(), 0.0)
    return (relaxed_target * ratio).sum(-1).clamp(min=0)


def spending(
    rule: Rule,
    rows: Tensor,
    target_logits: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    for_budget: bool,
    audited: Tensor | None,
) -> Spending:
    """Return what some rows of a step cost.

    Args:
        rule: an expressible acceptance rule.
        rows: positions, ``[rows]``.
        target_logits: of the whole step, not yet relaxed, ``[positions, vocabulary]``.
        draft_probs: likewise, or None for a deterministic draft.
        draft_token_ids: ``[positions]``.
        for_budget: whether ``emitted`` is needed in every row.
        audited: indices into ``rows`` where it is needed otherwise.
    """
    tokens = draft_token_ids[rows].long().clamp(min=0)
    logits = target_logits[rows]
    q = probability_from_logits(target_logits[rows, tokens], logits.logsumexp(-1))
    if draft_probs is None:
        h = relaxed_probability(rule, q)
        cost = lift_cost(q, h)
        return Spending(cost, cost, audited, q, h)
    p = draft_probs[rows, tokens].double()
    needed = torch.arange(len(rows), device=rows.device) if for_budget else audited
    if changes_one_logit(rule, draft_probs):
        h = relaxed_probability(rule, q)
        conditional, emitted = lift_cost(q, h), torch.full_like(q, torch.inf)
        if needed is not None:
            emitted[needed] = _audited(rule, logits[needed], draft_probs[rows[needed]])
    else:
        relaxed = rule.relaxed_target(logits.double().softmax(-1), draft_probs[rows])
        assert relaxed is not None
        h = relaxed.gather(1, tokens.unsqueeze(1)).squeeze(1)
        conditional = emitted = row_cost(relaxed, logits.double().softmax(-1))
    kept = [torch.where(p > 0, (x / p).clamp(max=1.0), 0.0) for x in (q, h)]
    return Spending(conditional, emitted, audited, kept[0], kept[1])


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
