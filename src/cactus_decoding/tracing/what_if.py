"""What a rule does at one position: its numbers, what it emits, and what that costs, from the rows of both models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cactus_decoding.arguments.checks import check_integer, check_probabilities, shown
from cactus_decoding.arguments.later import Tensor, functional, torch
from cactus_decoding.auditing import audit_beside, audit_rows, judge_every_token
from cactus_decoding.divergences.rows import kl_of_rows, normalised, without
from cactus_decoding.policy.position import Position
from cactus_decoding.rules import Lossless, as_rule
from cactus_decoding.rules.base import EmittedRows, JudgedOn, relaxed_target_beside
from cactus_decoding.rules.relaxed_greedy import given_up
from cactus_decoding.sampling.rows import SparseProbs
from cactus_decoding.types import AcceptanceRule, Visit, judges_untempered

_SOLVED, _UNIT = 1e-12, 2.0**-53
"""How far from 1 a solver may leave the sum of h, and what adding up a token's probability in float64 may add."""


@dataclass(frozen=True, eq=False)
class PositionRows:
    """All that a rule's behaviour at one position follows from.

    Attributes:
        drafted_id: the drafted token n.
        target: the target's row q, as it is sampled from.
        draft: the draft's row p; None if the choice was deterministic.
        untempered: the target's row before temperature, kept at temperature 0, where `RelaxedGreedy` judges on it.
        fixed_token_ids: in a tree, the tokens that were proposed here in any case; n was drawn from the draft's row
            without them, or is one of them.
        drawn: whether any token was drawn here, beside those.
    """

    drafted_id: int
    target: SparseProbs
    draft: SparseProbs | None = None
    untempered: SparseProbs | None = None
    fixed_token_ids: tuple[int, ...] = ()
    drawn: bool = True

    @classmethod
    def keep(cls, visit: Visit, untempered: Tensor | None = None) -> PositionRows:
        """Keep the rows of a visited position, and the one before temperature if it is given."""
        position, beside = Position(visit.rows, visit.rows.proposal.parents[visit.node]), dict[str, Any]()
        if not position.is_plain:
            beside = {"fixed_token_ids": tuple(position.fixed_token_ids.tolist()), "drawn": position.is_drawn}
        kept = [visit.target_probs, position.draft_row, untempered]
        target, draft, before = (None if row is None else SparseProbs.keep(row) for row in kept)
        assert target is not None
        return cls(visit.token_id, target, draft, before, **beside)

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory."""
        return sum(row.nbytes for row in (self.target, self.draft, self.untempered) if row is not None)

    def draft_law(self) -> Tensor:
        """Return the law that n was drawn from, ``[vocabulary]`` in float64: for a deterministic draft n alone."""
        if self.draft is None or self.drafted_id in self.fixed_token_ids:
            return functional.one_hot(torch.tensor(self.drafted_id), self.target.vocabulary).double()
        row = self.draft.dense().double()
        return without(row, torch.tensor(self.fixed_token_ids)) if self.fixed_token_ids else row


@dataclass(frozen=True, eq=False)
class Consequences:
    """What a rule does at one position, exactly, in float64.

    Attributes:
        rule: its spelling.
        relaxed_prob: h(n) of the drafted token n, the first of the rule's two numbers.
        residual_scale: s, the second one; may be infinite.
        acceptance_prob: probability that n, once drafted, is accepted: min(h(n) / p(n), 1).
        acceptance: probability that whatever the draft proposes here is accepted, averaged over its row; in a tree,
            that one of the fixed tokens and the first drawn one is kept by `match`.
        relaxed: the relaxed target h given n, ``[vocabulary]``; for rules whose h is emitted whatever is drafted, that
            one.
        emitted: the law of the emitted token, averaged over the draft, ``[vocabulary]``.
        conditional_nats: KL(h || q) given n; NaN where h is no distribution.
        emitted_nats: KL(emitted || q). For ``relaxed_greedy`` both are the log-probability given up.
        tv: total variation between emitted and q, in [0, 1].
        max_log_ratio: log of the largest emitted(x) / q(x), in nats.
    """

    rule: str
    relaxed_prob: float
    residual_scale: float
    acceptance_prob: float
    acceptance: float
    relaxed: Tensor
    emitted: Tensor
    conditional_nats: float
    emitted_nats: float
    tv: float
    max_log_ratio: float


def what_if(rows: PositionRows, rule: AcceptanceRule | str) -> Consequences:
    """Return what a rule would do, or did, at a position: the emitted law and its cost, exactly.

    Args:
        rows: of both models at the position.
        rule: any acceptance rule or its spelling, whichever was used when the rows were kept.

    Raises:
        TypeError, ValueError: for what is no rule, or ``relaxed_greedy`` at a position that was not greedy.

    Example:
        >>> target, draft = (SparseProbs.keep(torch.tensor(row)) for row in ([0.5, 0.5], [1.0, 0.0]))
        >>> rows = PositionRows(0, target, draft)
        >>> [round(what_if(rows, f"cactus:delta={delta}").acceptance_prob, 6) for delta in (0, 0.02, 1)]
        [0.5, 0.6, 1.0]
    """
    rule = as_rule(rule)
    if not isinstance(rows, PositionRows):
        raise TypeError(f"rows must be PositionRows, but is {shown(rows)}")
    target = normalised(check_probabilities("rows.target", rows.target.dense()))
    drafted = torch.tensor([check_integer("rows.drafted_id", rows.drafted_id, 0, len(target) - 1)])
    law = normalised(check_probabilities("rows.draft", rows.draft_law()))
    judge = rule
    if judges_untempered(rule):
        if rows.untempered is None:
            name = str(rule).partition(":")[0]
            raise ValueError(f"{name} is a rule for temperature 0 (greedy decoding), but these rows are not of it")
        judge = JudgedOn(rule, rows.untempered.dense().double())
    draft, fixed = None if rows.draft is None else law, torch.tensor(rows.fixed_token_ids, dtype=torch.long)
    averaged = law
    if len(fixed):  # beside the drawn token, whichever was kept
        whole = None if rows.draft is None else normalised(rows.draft.dense().double())
        averaged = _law_beside(whole if rows.drawn else None, fixed, len(target))
        audited = audit_beside(judge, target, whole, averaged, fixed)
        emitted = relaxed_target_beside(judge, target, whole, averaged, fixed)
        judge = judge if emitted is None else EmittedRows(emitted)
        draft = None if rows.drafted_id in rows.fixed_token_ids else law
    else:
        audited = audit_rows(judge, target, law)
    relaxed_prob, scale = (number.item() for number in judge.judge(target, draft, drafted))
    relaxed = _relaxed_row(judge, target, law, rows.drafted_id, relaxed_prob, scale)
    is_law = abs(relaxed.sum().item() - 1) <= _SOLVED + len(relaxed) * _UNIT
    conditional = kl_of_rows(relaxed, target).item() if is_law else math.nan
    # rounding leaves a KL of zero a little above it
    emitted_nats = 0.0 if isinstance(rule, Lossless) else audited.kl.item()
    if isinstance(judge, JudgedOn):
        conditional, emitted_nats = _given_up(rule, judge.rows, averaged, rows.drafted_id)
    draft_prob = law[rows.drafted_id].item()
    return Consequences(
        rule=str(rule),
        relaxed_prob=relaxed_prob,
        residual_scale=scale,
        acceptance_prob=min(relaxed_prob / draft_prob, 1.0) if draft_prob > 0 else float(relaxed_prob > 0),
        acceptance=audited.acceptance.item(),
        relaxed=relaxed,
        emitted=audited.output_probs,
        conditional_nats=conditional,
        emitted_nats=emitted_nats,
        tv=audited.tv.item(),
        max_log_ratio=audited.max_log_ratio.item(),
    )


def _law_beside(draft: Tensor | None, fixed: Tensor, vocabulary: int) -> Tensor:
    """Return the law of the token that is judged in a tree: the drawn one, or the first fixed one where none is."""
    law = functional.one_hot(fixed[0], vocabulary).double()
    if draft is None:
        return law
    rest = without(draft, fixed)
    return rest if rest.sum() > 0 else law


def _relaxed_row(
    rule: AcceptanceRule, target: Tensor, draft: Tensor, drafted: int, relaxed_prob: float, scale: float
) -> Tensor:
    """Return h given the drafted token."""
    whatever_is_drafted = rule.relaxed_target(target, draft)
    if whatever_is_drafted is not None:
        return whatever_is_drafted
    recovery = rule.recovery_target(target).double()
    if math.isinf(scale):  # recovery ignores the draft, and may return to n
        row = (1 - relaxed_prob) * recovery
        row[drafted] += relaxed_prob
        return row
    row = scale * recovery
    row[drafted] = relaxed_prob
    return row


def _given_up(rule: AcceptanceRule, untempered: Tensor, draft: Tensor, drafted: int) -> tuple[float, float]:
    """Return the log-probability given up if n is drafted, and on average over the draft."""
    kept = judge_every_token(rule, untempered, draft).relaxed_prob > 0
    costs = torch.where(kept, given_up(untempered, torch.arange(len(untempered))), 0.0)
    return costs[drafted].item(), (draft * costs).sum().item()
