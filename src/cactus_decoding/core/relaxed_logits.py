"""A rule as logits: what an engine's own rejection sampler must be given so that it does what the rule says.

Such a sampler accepts n when ``u <= h(n) / p(n)`` and recovers in proportion to (h - p)+, h the softmax of its logits.
Where h keeps the target's proportions away from n, one logit changes; where it does not depend on n, the row is log h.
At temperature 0 it takes the row's greatest logit, so what is kept is made that.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.f_divergences import DIVERGENCES
from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.rules.base import GreedyRule, LiftRule, RowRule, Rule, row_rule
from cactus_decoding.core.rules.relaxed_greedy import given_up
from cactus_decoding.core.types import without_equals

# float32 cannot tell such odds from certainty, and infinite logits would make a softmax NaN
_MAX_LOG_ODDS = 40.0
# a sampler may find nothing if so many roundings are left of h - p; then h is lifted by so many
_NOTHING, _LIFT = 4, 16


def relaxed_probability(rule: Rule, target_prob: Tensor) -> Tensor:
    """Return h(n) in float64, at most 1, from q(n) alone, for rules to which all other tokens are as one.

    This holds for every `LiftRule`, and for rules that are `drafted_only` if the draft is deterministic. The rule is
    asked about rows (q(n), 1 - q(n)).
    """
    q = target_prob.double().unsqueeze(-1)
    drafted = torch.zeros_like(q, dtype=torch.int64)
    return rule.judge(torch.cat([q, 1 - q], -1), None, drafted).relaxed_prob.squeeze(-1).clamp(max=1.0)


def works_as_logits(rule: Rule | type[Rule]) -> bool:
    """Whether logits can say what a rule does: it lowers no token's h(n) if it lifts n or gives a row, or is greedy."""
    kind = rule if isinstance(rule, type) else type(rule)
    return issubclass(kind, GreedyRule) or (issubclass(kind, LiftRule | RowRule) and rule.never_stricter)


def probability_from_logits(token_logits: Tensor, log_totals: Tensor) -> Tensor:
    """Return exp(logit - logsumexp) in float64, at most 1; 0 where the row itself is empty."""
    return torch.nan_to_num((token_logits.double() - log_totals.double()).exp(), nan=0.0).clamp(max=1.0)


def lift_cost(target_prob: Tensor, relaxed_prob: Tensor) -> Tensor:
    """Return KL(h || q) of rows in which one token is lifted from q(n) to h(n)."""
    inside = (target_prob > 0) & (target_prob < 1)
    cost = DIVERGENCES["kl"].value(relaxed_prob, torch.where(inside, target_prob, 0.5))
    return torch.where(inside & (relaxed_prob > target_prob), cost.clamp(min=0), 0.0)


class RelaxedLogits(NamedTuple):
    """What a rule makes of some rows, and what that costs; float64 but for the logits, ``[rows]`` each."""

    logits: Tensor  # in the target's dtype: of the drafted tokens, ``[rows]``, or whole rows, ``[rows, vocabulary]``
    target_prob: Tensor  # q(n)
    relaxed_prob: Tensor  # h(n)
    conditional: Tensor  # KL(h || q) for the h of the drafted token, exact; by greedy rules the nats given up


def relax_tokens(
    rule: Rule, token_logits: Tensor, log_totals: Tensor, rows: tuple[Tensor, Tensor] | None = None
) -> RelaxedLogits:
    """Return the drafted tokens' logits that turn each row into h, for rules that lift one token or a certain draft.

    .. math:: x_n = L + log(1 - q(n)) + log h(n) - log(1 - h(n)),   L = logsumexp of the row

    Where h(n) is q(n), such as outside the target's support, the logit is returned as it was, to the last bit. A rule
    that is not `drafted_only` is asked about ``rows``: the target's logits, ``[..., vocabulary]``, and drafted tokens.
    """
    q = probability_from_logits(token_logits, log_totals)
    if not rule.drafted_only:
        assert rows is not None
        target_probs = probability_from_logits(rows[0], log_totals.unsqueeze(-1))
        h = rule.judge(target_probs, None, rows[1].unsqueeze(-1)).relaxed_prob.squeeze(-1).clamp(max=1.0)
    else:
        h = relaxed_probability(rule, q)
    log_odds = (h.log() - torch.log1p(-h)).clamp(max=_MAX_LOG_ODDS)
    lifted = log_totals.double() + torch.log1p(-q) + log_odds
    logits = torch.where((h > q) & (q > 0) & (q < 1), lifted.to(token_logits.dtype), token_logits)
    return RelaxedLogits(logits, q, h, lift_cost(q, h))


def relax_rows(rule: Rule, target_logits: Tensor, draft_probs: Tensor, token_ids: Tensor) -> RelaxedLogits:
    """Return log h for rules whose h does not depend on n; raise `ValueError` for others.

    Where h exceeds p by rounding at most, a sampler that rejects n has nothing to draw from, and takes token 0. There n
    is lifted by a few roundings, so that it is kept. Where h excludes n, the likeliest token is lifted, so that it is
    drawn.
    """
    target_probs = target_logits.double().softmax(-1)
    if (row := row_rule(rule)) is None:
        raise ValueError(f"{rule!s} has no relaxed target: its h depends on the drafted token")
    h = row.relaxed_target(target_probs, draft_probs)
    token = token_ids.unsqueeze(1)
    return RelaxedLogits(
        logits=_with_something_left(h, draft_probs, token, target_logits.dtype),
        target_prob=target_probs.gather(1, token).squeeze(1),
        relaxed_prob=h.gather(1, token).squeeze(1),
        conditional=kl_of_rows(h, target_probs),
    )


def relax_greedily(rule: GreedyRule, target_logits: Tensor, token_ids: Tensor) -> RelaxedLogits:
    """Return the drafted tokens' logits, above all others where a rule for temperature 0 keeps what is not likeliest.

    The rule is asked about the logits as they are, from before temperature and truncation, ``[rows, vocabulary]``. At
    temperature 0, q and h are 0 or 1. What is given up is 0 exactly where the likeliest token stays that.
    """
    token, likeliest = token_ids.unsqueeze(1), target_logits.argmax(-1, keepdim=True)
    probs = without_equals(target_logits.softmax(-1), likeliest)
    nats, lossless = given_up(probs, token).clamp(min=sys.float_info.min), token == likeliest
    relaxed = rule.accepts(probs, token) & ~lossless & nats.isfinite()  # rows that are no distributions give up NaN
    greatest = target_logits.gather(-1, likeliest)
    lifted = torch.where(relaxed, greatest + greatest.abs() + 1, target_logits.gather(-1, token))
    columns = lifted, lossless.double(), (relaxed | lossless).double(), torch.where(relaxed, nats, 0.0)
    return RelaxedLogits(*(column.squeeze(1) for column in columns))


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
    """What some positions cost if they are relaxed; float64, ``[positions]`` each."""

    conditional: Tensor  # KL(h || q) for the h of the drafted token, exact
    emitted: Tensor  # KL of what is emitted to q, averaged over the drafted token; infinite if not audited
    lossless_acceptance: Tensor  # probability of accepting the drafted token
    acceptance: Tensor  # the same with the rule

    @property
    def relaxed(self) -> Tensor:
        """Probability that the lossless test rejects what was accepted, with the same uniform number."""
        return (1 - self.lossless_acceptance / self.acceptance.clamp(min=1e-300)).clamp(0, 1)


def costs_of(
    relaxed: RelaxedLogits, draft_token_probs: Tensor | None, audited: tuple[Tensor, Tensor] | None
) -> PositionCosts:
    """Return what some positions cost.

    ``draft_token_probs`` are p(n), None for a deterministic draft. ``audited`` are the indices of positions and their
    `audited_nats`. These are not needed where the draft is deterministic or h is the same for every drafted token: what
    is emitted then costs what h does.
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

    It is infinite for rows that are not distributions, as an exception would end an engine's worker.
    """
    draft_probs = draft_probs.double()
    try:
        kl = audit(rule, target_logits.double().softmax(-1), draft_probs / draft_probs.sum(-1, keepdim=True)).kl
    except ValueError:
        return torch.full(target_logits.shape[:1], torch.inf, dtype=torch.float64, device=target_logits.device)
    return kl.clamp(min=0)
