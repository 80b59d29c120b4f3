"""A rule as logits: what an engine's own rejection sampler must be given so that it does what the rule says.

Such a sampler accepts n when ``u <= h(n) / p(n)`` and recovers in proportion to (h - p)+, h the softmax of its logits.
Where h keeps the target's proportions away from n, one logit changes; where it does not depend on n, the row is log h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.f_divergences import DIVERGENCES
from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.rules.base import Rule

_MAX_LOG_ODDS = 40.0
"""Odds that float32 cannot tell from certainty; infinite logits would make a softmax NaN."""

_NOTHING, _LIFT = 4, 16
"""How many roundings may be left of h - p where a sampler might find nothing, and by how many h is then lifted."""


def relaxed_probability(rule: Rule, target_prob: Tensor) -> Tensor:
    """Return h(n) in float64, at most 1, from q(n) alone, where all other tokens are one to the rule.

    So they are to rules that lift one token, and to all rules if the draft is deterministic. The rule is asked about
    rows (q(n), 1 - q(n)).

    Example:
        >>> from cactus_decoding import Cactus
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


class RelaxedLogits(NamedTuple):
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


def relax_tokens(rule: Rule, token_logits: Tensor, log_totals: Tensor) -> RelaxedLogits:
    """Return the drafted tokens' logits that turn each row into h; for the rules of `relaxed_probability`.

    .. math:: x_n = L + log(1 - q(n)) + log h(n) - log(1 - h(n)),   L = logsumexp of the row

    Where h(n) is q(n), such as outside the target's support, the logit is returned as it was, to the last bit.

    Example:
        >>> from cactus_decoding import Cactus
        >>> row = torch.tensor([0.0, 0.0])
        >>> row[0] = relax_tokens(Cactus(delta=0.02), row[0], row.logsumexp(-1)).logits
        >>> [round(x, 6) for x in row.softmax(-1).tolist()]
        [0.6, 0.4]
    """
    q = probability_from_logits(token_logits, log_totals)
    h = relaxed_probability(rule, q)
    log_odds = (h.log() - torch.log1p(-h)).clamp(max=_MAX_LOG_ODDS)
    lifted = log_totals.double() + torch.log1p(-q) + log_odds
    logits = torch.where((h > q) & (q > 0) & (q < 1), lifted.to(token_logits.dtype), token_logits)
    return RelaxedLogits(logits, q, h, lift_cost(q, h))


def relax_rows(rule: Rule, target_logits: Tensor, draft_probs: Tensor, token_ids: Tensor) -> RelaxedLogits:
    """Return log h for rules whose h does not depend on n; raise `ValueError` for others.

    Where h is nowhere greater than p but for rounding, a sampler that rejects n has nothing to draw from, and takes
    token 0. There n is lifted by a few roundings, so that it is kept, or, where h excludes n, the likeliest token is,
    so that it is drawn.

    Example:
        >>> from cactus_decoding import Ensemble
        >>> draft_probs, drafted = torch.tensor([[0.75, 0.25]]), torch.tensor([0])
        >>> relax_rows(Ensemble(weight=1.0), torch.zeros(1, 2), draft_probs, drafted).logits.exp()
        tensor([[0.7500, 0.2500]])
    """
    target_probs = target_logits.double().softmax(-1)
    h = rule.relaxed_target(target_probs, draft_probs)
    if h is None:
        raise ValueError(f"{rule!s} has no relaxed target: its h depends on the drafted token")
    token = token_ids.unsqueeze(1)
    return RelaxedLogits(
        logits=_with_something_left(h, draft_probs, token, target_logits.dtype),
        target_prob=target_probs.gather(1, token).squeeze(1),
        relaxed_prob=h.gather(1, token).squeeze(1),
        conditional=kl_of_rows(h, target_probs),
    )


def _with_something_left(h: Tensor, draft_probs: Tensor, token: Tensor, dtype: torch.dtype) -> Tensor:
    """Return log h, with one token lifted where the sampler's own arithmetic might leave nothing of h - p."""
    logits = h.log().to(dtype)
    sampled = (logits.float() if dtype.itemsize < 4 else logits).softmax(-1)
    left = (sampled - draft_probs.to(sampled.dtype)).clamp_(min=0).sum(-1, keepdim=True)
    rounding = torch.finfo(sampled.dtype).eps
    lifted = torch.where(h.gather(1, token) > 0, token, h.argmax(-1, keepdim=True))
    before, log_h = h.gather(1, lifted), logits.gather(1, lifted)
    after = (before * (1 + _LIFT * rounding * log_h.double().abs().clamp(min=1))).clamp(max=1)
    log_odds = (after.log() - torch.log1p(-after)).clamp(max=_MAX_LOG_ODDS)
    new = torch.where(before < 1, torch.log1p(-before) + log_odds, log_h).to(dtype)
    return logits.scatter(1, lifted, torch.where(left <= _NOTHING * rounding, new, log_h))


@dataclass(frozen=True, eq=False)
class PositionCosts:
    """What some positions cost if they are relaxed; float64, ``[positions]`` each.

    Attributes:
        conditional: KL(h || q) for the h of the drafted token, exact.
        emitted: KL of what is emitted to q, averaged over the drafted token; infinite where nobody audited.
        lossless_acceptance, acceptance: probability of accepting the drafted token, without and with the rule.
    """

    conditional: Tensor
    emitted: Tensor
    lossless_acceptance: Tensor
    acceptance: Tensor

    @property
    def relaxed(self) -> Tensor:
        """Probability that the lossless test rejects what was accepted, with the same uniform number."""
        return (1 - self.lossless_acceptance / self.acceptance.clamp(min=1e-300)).clamp(0, 1)


def costs_of(
    relaxed: RelaxedLogits, draft_token_probs: Tensor | None, audited: tuple[Tensor, Tensor] | None
) -> PositionCosts:
    """Return what some positions cost.

    A deterministic draft has no p(n). Audited are the indices of positions and their `audited_nats`, which nobody need
    know where the draft is deterministic or h is the same for every drafted token: what is emitted then costs what h
    does.

    Example:
        >>> from cactus_decoding import Cactus
        >>> from cactus_decoding.engines.openai.relaxed_logits import relax_tokens
        >>> half = relax_tokens(Cactus(delta=0.02), torch.tensor([0.0]), torch.tensor([2.0]).log())
        >>> costs_of(half, None, None).acceptance
        tensor([0.6000], dtype=torch.float64)
    """
    acceptances = [relaxed.target_prob, relaxed.relaxed_prob]
    emitted = relaxed.conditional
    if (p := draft_token_probs) is not None:
        acceptances = [torch.where(p > 0, (x / p).clamp(max=1.0), 0.0) for x in acceptances]
        if relaxed.logits.dim() == 1:  # h depends on the drafted token
            emitted = torch.full_like(emitted, torch.inf)
            if audited is not None:
                emitted[audited[0]] = audited[1]
    return PositionCosts(relaxed.conditional, emitted, *acceptances)


def audited_nats(rule: Rule, target_logits: Tensor, draft_probs: Tensor) -> Tensor:
    """Return the KL of what is emitted to the target, ``[rows]``.

    It is infinite where rows are no distributions, which must not end an engine's worker.

    Example:
        >>> from cactus_decoding import Lossless
        >>> audited_nats(Lossless(), torch.zeros(1, 2), torch.tensor([[0.75, 0.25]]))
        tensor([0.], dtype=torch.float64)
        >>> audited_nats(Lossless(), torch.zeros(1, 2), torch.tensor([[0.75, torch.nan]]))
        tensor([inf], dtype=torch.float64)
    """
    draft_probs = draft_probs.double()
    try:
        kl = audit(rule, target_logits.double().softmax(-1), draft_probs / draft_probs.sum(-1, keepdim=True)).kl
    except ValueError:
        return torch.full(target_logits.shape[:1], torch.inf, dtype=torch.float64, device=target_logits.device)
    return kl.clamp(min=0)
