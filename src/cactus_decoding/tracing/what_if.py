"""What a rule does at one position: its numbers, what it emits, and what that costs, from the rows of both models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.auditing import audit, judge_every_token
from cactus_decoding.budgets.budget import kl_of_rows
from cactus_decoding.rules import Lossless, RelaxedGreedy, as_rule
from cactus_decoding.rules.relaxed_greedy import given_up
from cactus_decoding.types import AcceptanceRule
from cactus_decoding.verification.verifiers import JudgedOn

_SUM_TOLERANCE = 1e-4
"""How far from 1 the sum of h may be, as rows made in float32 are."""


@dataclass(frozen=True, eq=False)
class KeptRow:
    """A row of probabilities as it was, in its own precision: dense, or only what is not zero.

    Attributes:
        vocabulary: width of the row.
        values: ``[vocabulary]``, or where ``token_ids`` is given only the entries that are not zero, ``[entries]``.
        token_ids: their tokens, ascending, int32.

    Example:
        >>> row = KeptRow.keep(torch.tensor([0.0, 0.0, 0.0, 1.0]))
        >>> row.token_ids.tolist(), row.dense().tolist()
        ([3], [0.0, 0.0, 0.0, 1.0])
    """

    vocabulary: int
    values: Tensor
    token_ids: Tensor | None = None

    @classmethod
    def keep(cls, row: Tensor) -> KeptRow:
        """Keep a row, ``[vocabulary]``, in whichever form is smaller."""
        token_ids = row.nonzero().squeeze(1)
        if 2 * len(token_ids) >= len(row):
            return cls(len(row), row.cpu().clone())
        return cls(len(row), row[token_ids].cpu(), token_ids.cpu().int())

    def dense(self) -> Tensor:
        """Return the row, ``[vocabulary]``."""
        if self.token_ids is None:
            return self.values
        return self.values.new_zeros(self.vocabulary).index_copy_(0, self.token_ids.long(), self.values)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """All that a rule's behaviour at one position follows from.

    Attributes:
        drafted_id: the drafted token n.
        target: the target's row q, as it is sampled from.
        draft: the draft's row p; None if the choice was deterministic.
        untempered: the target's row before temperature, kept at temperature 0, where `RelaxedGreedy` judges on it.
    """

    drafted_id: int
    target: KeptRow
    draft: KeptRow | None = None
    untempered: KeptRow | None = None


@dataclass(frozen=True, eq=False)
class Consequences:
    """What a rule does at one position, exactly, in float64.

    Attributes:
        rule: its spelling.
        relaxed_prob: h(n) of the drafted token n, the first of the rule's two numbers.
        residual_scale: s, the second one; may be infinite.
        acceptance_prob: probability that n, once drafted, is accepted: min(h(n) / p(n), 1).
        acceptance: probability that whatever the draft proposes here is accepted, averaged over its row.
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


def what_if(rows: KeptRows, rule: AcceptanceRule | str) -> Consequences:
    """Return what a rule would do, or did, at a position: the emitted law and its cost, exactly.

    Args:
        rows: of both models at the position.
        rule: any acceptance rule or its spelling, whichever was used when the rows were kept.

    Raises:
        TypeError, ValueError: for what is no rule, or ``relaxed_greedy`` at a position that was not greedy.

    Example:
        >>> rows = KeptRows(0, KeptRow.keep(torch.tensor([0.5, 0.5])), KeptRow.keep(torch.tensor([1.0, 0.0])))
        >>> [round(what_if(rows, f"cactus:delta={delta}").acceptance_prob, 6) for delta in (0, 0.02, 1)]
        [0.5, 0.6, 1.0]
    """
    rule = as_rule(rule)
    target, drafted = rows.target.dense().double(), torch.tensor([rows.drafted_id])
    deterministic = one_hot(drafted[0], rows.target.vocabulary).double()
    draft = None if rows.draft is None else rows.draft.dense().double()
    judge = rule
    if isinstance(rule, RelaxedGreedy):
        if rows.untempered is None:
            raise ValueError(
                "relaxed_greedy is a rule for temperature 0 (greedy decoding), but these rows are not of it"
            )
        judge = JudgedOn(rule, rows.untempered.dense().double())
    law = deterministic if draft is None else draft
    relaxed_prob, scale = (number.item() for number in judge.judge(target, draft, drafted))
    relaxed = _relaxed_row(judge, target, law, rows.drafted_id, relaxed_prob, scale)
    audited = audit(judge, target, law)
    is_law = abs(relaxed.sum().item() - 1) < _SUM_TOLERANCE
    conditional = kl_of_rows(relaxed, target).clamp(min=0).item() if is_law else math.nan
    # rounding can take a KL of zero to either side of it
    emitted = 0.0 if isinstance(rule, Lossless) else audited.kl.clamp(min=0).item()
    if isinstance(judge, JudgedOn):
        conditional, emitted = _given_up(rule, judge.rows, law, rows.drafted_id)
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
        emitted_nats=emitted,
        tv=audited.tv.item(),
        max_log_ratio=audited.max_log_ratio.item(),
    )


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
