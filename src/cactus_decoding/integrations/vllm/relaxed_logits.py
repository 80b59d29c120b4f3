"""A rule as logits: what vLLM's own rejection sampler must be given so that it does what the rule says.

That sampler accepts n when ``u <= h(n) / p(n)`` and recovers in proportion to (h - p)+, h the softmax of its logits.
Where h keeps the target's proportions away from n, one logit changes; where it does not depend on n, the row is log h.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.divergences.f_divergences import DIVERGENCES
from cactus_decoding.rules import Cactus
from cactus_decoding.rules.base import Rule

_MOST_LOG_ODDS = 40.0
"""Odds that float32 cannot tell from certainty; infinite logits would make a softmax NaN."""
_MOST_ELEMENTS = 1 << 25
"""Of float64 rows that are worked on at once."""


def changes_one_logit(rule: Rule, draft_probs: Tensor | None) -> bool:
    """Say whether h is the target with the drafted token lifted: for any rule if the draft is deterministic.

    Example:
        >>> changes_one_logit(Cactus(delta=1.0), torch.ones(1, 1))
        True
    """
    return draft_probs is None or isinstance(rule, Cactus)


def relaxed_probability(rule: Rule, target_prob: Tensor) -> Tensor:
    """Return h(n) in float64, at most 1, from q(n) alone, for rules that `changes_one_logit`.

    To such a rule all other tokens are one: it is asked about rows (q(n), 1 - q(n)).

    Args:
        rule: an expressible acceptance rule.
        target_prob: q(n), any shape.

    Example:
        >>> relaxed_probability(Cactus(delta=0.02), torch.tensor([0.5])).item()
        0.6
    """
    q = target_prob.double().unsqueeze(-1)
    drafted = torch.zeros_like(q, dtype=torch.int64)
    return rule.judge(torch.cat([q, 1 - q], -1), None, drafted).relaxed_prob.squeeze(-1).clamp(max=1.0)


def probability_from_logits(token_logits: Tensor, log_totals: Tensor) -> Tensor:
    """Return exp(logit - logsumexp) in float64, at most 1; 0 where the row itself is empty."""
    return torch.nan_to_num((token_logits.double() - log_totals.double()).exp(), nan=0.0).clamp(max=1.0)


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


@dataclass(frozen=True, eq=False)
class Relaxed:
    """What a rule makes of some rows, and what that costs; float64 but for the logits, ``[rows]`` each.

    Attributes:
        logits: in the target's type: of the drafted tokens, ``[rows]``, or whole rows, ``[rows, vocabulary]``.
        target_prob: q(n).
        relaxed_prob: h(n).
        conditional: KL(h || q) for the h of the drafted token, exact.
    """

    logits: Tensor
    target_prob: Tensor
    relaxed_prob: Tensor
    conditional: Tensor


def relax_tokens(rule: Rule, token_logits: Tensor, log_totals: Tensor) -> Relaxed:
    """Return the drafted tokens' logits that turn each row into h, for rules that `changes_one_logit`.

    .. math:: x_n = L + log(1 - q(n)) + log h(n) - log(1 - h(n)),   L = logsumexp of the row

    Where h(n) is q(n), such as outside the target's support, the logit is returned as it was, to the last bit.

    Args:
        rule: an expressible acceptance rule.
        token_logits: the drafted tokens' own logits, any shape.
        log_totals: logsumexp of their rows, same shape.

    Example:
        >>> row = torch.tensor([0.0, 0.0])
        >>> row[0] = relax_tokens(Cactus(delta=0.02), row[0], row.logsumexp(-1)).logits
        >>> [round(x, 6) for x in row.softmax(-1).tolist()]
        [0.6, 0.4]
    """
    q = probability_from_logits(token_logits, log_totals)
    h = relaxed_probability(rule, q)
    log_odds = (h.log() - torch.log1p(-h)).clamp(max=_MOST_LOG_ODDS)
    lifted = log_totals.double() + torch.log1p(-q) + log_odds
    logits = torch.where((h > q) & (q > 0) & (q < 1), lifted.to(token_logits.dtype), token_logits)
    return Relaxed(logits, q, h, lift_cost(q, h))


def relax_rows(rule: Rule, target_logits: Tensor, draft_probs: Tensor, token_ids: Tensor) -> Relaxed:
    """Return log h for rules whose h does not depend on n.

    Args:
        rule: an expressible acceptance rule.
        target_logits: the target's, ``[rows, vocabulary]``.
        draft_probs: the draft's rows, same shape.
        token_ids: the drafted tokens, ``[rows]``.

    Raises:
        ValueError: if the rule's h depends on the drafted token.

    Example:
        >>> from cactus_decoding.rules import Ensemble
        >>> draft_probs, drafted = torch.tensor([[0.75, 0.25]]), torch.tensor([0])
        >>> relax_rows(Ensemble(weight=1.0), torch.zeros(1, 2), draft_probs, drafted).logits.exp()
        tensor([[0.7500, 0.2500]])
    """
    size = max(1, _MOST_ELEMENTS // target_logits.shape[-1])
    parts = zip(target_logits.split(size), draft_probs.split(size), token_ids.split(size), strict=True)
    relaxed = [_relax_rows(rule, *part) for part in parts]
    return relaxed[0] if len(relaxed) == 1 else Relaxed(*map(torch.cat, zip(*map(_fields, relaxed), strict=True)))


def _fields(relaxed: Relaxed) -> tuple[Tensor, ...]:
    return relaxed.logits, relaxed.target_prob, relaxed.relaxed_prob, relaxed.conditional


def _relax_rows(rule: Rule, target_logits: Tensor, draft_probs: Tensor, token_ids: Tensor) -> Relaxed:
    target_probs = target_logits.double().softmax(-1)
    h = rule.relaxed_target(target_probs, draft_probs)
    if h is None:
        raise ValueError(f"{rule!s} has no relaxed target: its h depends on the drafted token")
    token, cost = token_ids.unsqueeze(1), row_cost(h, target_probs)
    return Relaxed(
        h.log().to(target_logits.dtype), target_probs.gather(1, token).squeeze(1), h.gather(1, token).squeeze(1), cost
    )
