"""What a rule does at one position: its numbers, what it emits, and what that costs, from the rows of both models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.core.audit import beside
from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules import Lossless, as_rule
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.rules.relaxed_greedy import given_up
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.lab.tracing.position_rows import PositionRows

_SOLVED, _UNIT = 1e-12, 2.0**-53
"""How far from 1 a solver may leave the sum of h, and what adding up a token's probability in float64 may add."""


@dataclass(frozen=True, eq=False)
class Consequences:
    """What a rule does at one position, exactly, in float64."""

    rule: str
    relaxed_prob: float  # h(n) of the drafted token n, the first of the rule's two numbers
    residual_scale: float  # s, the second one; may be infinite
    acceptance_prob: float  # that n, once drafted, is accepted: min(h(n) / p(n), 1)
    # that whatever is drafted here is accepted; in a tree, that `match` keeps a fixed token or the first drawn one
    acceptance: float
    draft: Tensor  # the distribution that n was drawn from, [vocabulary]; one-hot for a deterministic draft
    relaxed: Tensor  # the relaxed target h given n, [vocabulary]; for some rules h does not depend on n
    emitted: Tensor  # the distribution of the emitted token, averaged over the draft, [vocabulary]
    conditional_nats: float  # KL(h || q) given n; NaN where h is no distribution
    emitted_nats: float  # KL(emitted || q); for relaxed_greedy both are the log-probability given up
    tv: float  # total variation between emitted and q, in [0, 1]
    max_log_ratio: float  # log of the largest emitted(x) / q(x), in nats


def what_if(rows: PositionRows, rule: AcceptanceRule | str) -> Consequences:
    """Return what a rule would do, or did, at a position, whichever rule was used when the rows were kept.

    Raises `TypeError`, `ValueError` for an invalid rule, or ``relaxed_greedy`` at a position that was not greedy.

    Example:
        >>> import torch
        >>> from cactus_decoding.core.sampling.rows import SparseProbs
        >>> target, draft = (SparseProbs.keep(torch.tensor(row)) for row in ([0.5, 0.5], [1.0, 0.0]))
        >>> rows = PositionRows(0, target, draft)
        >>> [round(what_if(rows, f"cactus:delta={delta}").acceptance_prob, 6) for delta in (0, 0.02, 1)]
        [0.5, 0.6, 1.0]
    """
    rule = as_rule(rule)
    if not isinstance(rows, PositionRows):
        raise TypeError(f"rows must be PositionRows, but is {short_repr(rows)}")
    if isinstance(rule, GreedyRule) and rows.untempered is None:
        name = str(rule).partition(":")[0]
        raise ValueError(f"{name} is a rule for temperature 0 (greedy decoding), but these rows are not of it")
    return consequences(rows.position(), rows.drafted_id, rule)


def consequences(position: Position, token_id: int, rule: AcceptanceRule) -> Consequences:
    target, drawn_from = position.target.probs, position.distribution(position.drafted).probs
    index, token = position.token_ids.index(token_id), torch.tensor([token_id])
    audited = beside(position.audit(rule), drawn_from, position.fixed_token_ids)
    own = position.distribution(index)
    given = None if index < position.num_fixed else own.probs
    if position.is_plain and not isinstance(rule, GreedyRule):  # the rule's own numbers, which may differ from h and 1
        verdict = rule.judge(target, given, token)
    else:
        verdict = position.judge(rule, given, token)
    relaxed_prob, scale = verdict.relaxed_prob.item(), verdict.residual_scale.item()
    relaxed = position.relaxed_target(rule)
    if relaxed is None:  # where recovery ignores the draft, it may return to n
        anything = math.isinf(scale)
        relaxed = (1 - relaxed_prob if anything else scale) * verdict.recovers_from(target).double()
        relaxed[token_id] = relaxed_prob + (relaxed[token_id] if anything else 0)
    is_law = abs(relaxed.sum().item() - 1) <= _SOLVED + len(relaxed) * _UNIT
    conditional = kl_of_rows(relaxed, target).item() if is_law else math.nan
    # rounding leaves a KL of zero a little above it
    emitted_nats = 0.0 if isinstance(rule, Lossless) else audited.kl.item()
    if isinstance(rule, GreedyRule):
        every = torch.arange(len(drawn_from))
        kept = rule.accepts(position.untempered, every)
        costs = torch.where(kept, given_up(position.untempered, every), 0.0)
        conditional, emitted_nats = costs[token_id].item(), (drawn_from * costs).sum().item()
    draft_prob = own[token_id]
    return Consequences(
        rule=str(rule),
        relaxed_prob=relaxed_prob,
        residual_scale=scale,
        acceptance_prob=min(relaxed_prob / draft_prob, 1.0) if draft_prob > 0 else float(relaxed_prob > 0),
        acceptance=audited.acceptance.item(),
        draft=own.probs,
        relaxed=relaxed,
        emitted=audited.output_probs,
        conditional_nats=conditional,
        emitted_nats=emitted_nats,
        tv=audited.tv.item(),
        max_log_ratio=audited.max_log_ratio.item(),
    )
