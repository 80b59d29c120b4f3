"""The meter: which positions of a step a budget admits, by which rule each is judged, and what is spent afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.auditing import audit_rows
from cactus_decoding.budgets.budget import Budget
from cactus_decoding.budgets.pacing import Pace
from cactus_decoding.budgets.phases import PhaseState
from cactus_decoding.divergences.rows import kl_of_rows
from cactus_decoding.rules import ClampedRatio, Lossless
from cactus_decoding.rules.base import probability_of
from cactus_decoding.rules.emitted import EmittedRows
from cactus_decoding.rules.relaxed_greedy import given_up
from cactus_decoding.types import AcceptanceRule, Verdict


class BudgetState(NamedTuple):
    """What a response has spent, and what the next step needs to know of it.

    Attributes:
        limit: the budget in nats; infinite where it only measures.
        spent: nats so far; never above the limit.
        pace: where the budget is spread over the tokens expected.
        phase: of the response, for a policy that asks.
    """

    limit: float = math.inf
    spent: float = 0.0
    pace: Pace | None = None
    phase: PhaseState = PhaseState()


def begin(budget: Budget | None, rule: AcceptanceRule) -> BudgetState:
    """Return the state of a response that has spent nothing.

    Raises:
        ValueError: for a budget that is to be paced with a rule that has no width.

    Example:
        >>> begin(Budget(nats=0.5), ClampedRatio(width=1.0)).limit
        0.5
    """
    if budget is None:
        return BudgetState()
    if budget.expected_tokens is None:
        return BudgetState(budget.limit)
    return BudgetState(budget.limit, 0.0, Pace.begin(check_paced(rule), budget.limit, budget.expected_tokens))


def check_paced(rule: AcceptanceRule) -> float:
    """Return the width that pacing begins with; raise `ValueError` for a rule that has none."""
    if not isinstance(rule, ClampedRatio) or not rule.width:
        raise ValueError(
            "expected_tokens moves the width of the clamped ratio, so the rule must be clamped:width=... with a width "
            f"above 0, but is {rule}"
        )
    return rule.width


def rule_of_step(rule: AcceptanceRule, state: BudgetState) -> AcceptanceRule:
    """Return the rule that the next step spends with: the request's, or one of the width at which the rest lasts."""
    return rule if state.pace is None else ClampedRatio(width=state.pace.width(state.limit - state.spent))


@dataclass(frozen=True)
class Plan:
    """How one step is to be judged.

    Attributes:
        rule: judges the step's positions: the metered rule where it was admitted, the lossless rule elsewhere.
        costs: what the metered rule would cost at each position, in nats; nothing where a policy keeps it away.
        fell_back: the positions where that could not be afforded, which therefore cost nothing.
        protected: the positions where a policy keeps it away.
    """

    rule: AcceptanceRule
    costs: list[float]
    fell_back: list[bool]
    protected: list[bool]


def plan_step(
    rule: AcceptanceRule,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    *,
    limit: float,
    spent: float = 0.0,
    relaxable: Tensor | None = None,
) -> Plan:
    """Admit a step's positions one after another while the budget lasts.

    A position that may not be relaxed is judged losslessly and costs nothing. Another one is admitted if what was
    spent, the positions admitted before it, and its own cost are within the limit. That depends only on the tokens
    before it, as the proof needs.

    Args:
        rule: the rule that spends.
        target_probs: the target's rows at the drafted positions, ``[k, vocabulary]``. Costs are those of the rows that
            are given: `cactus_decoding.divergences.rows.normalised` makes laws of rows that were rounded.
        draft_probs: the draft's rows likewise, or None for a deterministic draft.
        draft_token_ids: drafted tokens, ``[k]``.
        limit: the budget in nats.
        spent: nats that earlier steps have cost.
        relaxable: which positions a policy lets the rule judge, ``[k]``; all, if None.

    Example:
        >>> q, p = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
        >>> plan_step(ClampedRatio(width=1.0), q, p, torch.tensor([0]), limit=0.01).fell_back
        [True]
    """
    if relaxable is None:
        relaxable = _everywhere(target_probs)
    if draft_probs is None:  # a deterministic draft is a random one that puts all its mass on one token
        draft_probs = one_hot(draft_token_ids.long(), target_probs.shape[-1]).double()
    relaxed = rule.relaxed_target(target_probs, draft_probs)
    if relaxed is None:
        costs = audit_rows(rule, target_probs.double(), draft_probs.double()).kl
    else:
        costs = kl_of_rows(relaxed, target_probs)
    nats: list[float] = torch.where(relaxable, costs, 0.0).tolist()
    admitted = admit(nats, limit, spent)
    judge = _where(rule, relaxable & relaxable.new_tensor(admitted), relaxed, target_probs)
    return Plan(judge, nats, _fell_back(nats, admitted), (~relaxable).tolist())


def confine(rule: AcceptanceRule, relaxable: Tensor, target_probs: Tensor, draft_probs: Tensor | None) -> Plan:
    """Plan a step that nobody meters: a rule judges some positions, the lossless rule the others.

    Args:
        rule: the rule.
        relaxable: where a policy lets it judge, ``[k]``.
        target_probs: the target's rows at these positions, ``[k, vocabulary]``.
        draft_probs: the draft's rows likewise, or None for a deterministic draft.
    """
    relaxed = None if draft_probs is None else rule.relaxed_target(target_probs, draft_probs)
    judge = _where(rule, relaxable, relaxed, target_probs)
    return Plan(judge, [0.0] * len(relaxable), [False] * len(relaxable), (~relaxable).tolist())


def _where(rule: AcceptanceRule, where: Tensor, relaxed: Tensor | None, target_probs: Tensor) -> AcceptanceRule:
    """Return the rule that judges some positions by a rule, whose h is given if it has one, the others losslessly."""
    if not bool(where.any()):
        return Lossless()
    if relaxed is not None:
        return EmittedRows(torch.where(where.unsqueeze(-1), relaxed, target_probs.double()))
    return rule if bool(where.all()) else WhereAdmitted(rule, where.unsqueeze(-1))


def _everywhere(rows: Tensor) -> Tensor:
    """Return that every one of some rows may be relaxed."""
    return torch.ones(len(rows), dtype=torch.bool, device=rows.device)


def plan_greedy_step(
    rule: AcceptanceRule,
    untempered: Tensor,
    draft_token_ids: Tensor,
    *,
    limit: float,
    spent: float = 0.0,
    relaxable: Tensor | None = None,
) -> Plan:
    """Admit a step's positions for a rule for temperature 0, which spends log-probability of kept tokens.

    Args:
        rule: judges rows before temperature.
        untempered: these rows of the target at the drafted positions, ``[k, vocabulary]``.
        draft_token_ids: drafted tokens, ``[k]``.
        limit: the budget in nats of log-probability.
        spent: what earlier steps have given up.
        relaxable: which positions a policy lets the rule judge, ``[k]``; all, if None.
    """
    if relaxable is None:
        relaxable = _everywhere(untempered)
    drafted = draft_token_ids.unsqueeze(-1)
    kept = (rule.judge(untempered, None, drafted).relaxed_prob > 0) & relaxable.unsqueeze(-1)
    costs: list[float] = torch.where(kept, given_up(untempered, drafted), 0.0).squeeze(-1).tolist()
    admitted = admit(costs, limit, spent)
    where = relaxable & relaxable.new_tensor(admitted)
    judge = WhereAdmitted(JudgedOn(rule, untempered), where.unsqueeze(-1))
    return Plan(judge, costs, _fell_back(costs, admitted), (~relaxable).tolist())


def _fell_back(costs: Sequence[float], admitted: Sequence[bool]) -> list[bool]:
    """Say where a rule could not be afforded; where it costs nothing it asks for nothing."""
    return [not fits and cost != 0 for cost, fits in zip(costs, admitted, strict=True)]


def admit(costs: Sequence[float], limit: float, spent: float = 0.0) -> list[bool]:
    """Say which of some positions, taken in order, can be afforded; one that cannot is passed over, and costs nothing.

    Of a limit that is used up, such as 0, nothing is admitted, not even what costs nothing: costs are rounded numbers.

    Example:
        >>> admit([0.5, 0.75, 0.25, 0.25, 0.0], limit=1.0)
        [True, False, True, True, False]
    """
    admitted = []
    for cost in costs:
        admitted.append(spent + cost <= limit and (spent < limit or limit == math.inf))
        spent += cost if admitted[-1] else 0.0
    return admitted


def charge(
    state: BudgetState, costs: Sequence[float], fell_back: Sequence[bool], num_accepted: int
) -> tuple[BudgetState, list[float]]:
    """Charge the positions that a step visited: return the state after it, and what each of them cost.

    Those are the accepted positions and the one of the first rejection. The bonus token costs nothing.

    Example:
        >>> charge(BudgetState(limit=1.0), [0.1, 0.2, 0.3], [False, True, False], num_accepted=1)[1]
        [0.1, 0.0]
    """
    visited = num_accepted + 1
    nats = [0.0 if over else cost for cost, over in zip(costs[:visited], fell_back[:visited], strict=True)]
    spent = state.spent
    for cost in nats:  # one by one, as they were admitted: the same rounding
        spent += cost
    pace = state.pace
    if pace is not None:
        pace = pace.after(costs[:visited], pace.width(state.limit - state.spent), visited)
    return state._replace(spent=spent, pace=pace), nats


@dataclass(frozen=True, eq=False)
class WhereAdmitted:
    """A rule at the positions that were admitted, and the lossless rule at the others.

    Attributes:
        rule: the rule.
        admitted: which positions it judges, ``[k, 1]``.
    """

    rule: AcceptanceRule
    admitted: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the rule's two numbers, or q(n) and 1."""
        relaxed_prob, scale = self.rule.judge(target_probs, draft_probs, token_ids)
        lossless = probability_of(target_probs, token_ids)
        return Verdict(torch.where(self.admitted, relaxed_prob, lossless), torch.where(self.admitted, scale, 1.0))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Return the rows that the rule recovers from, or the target's own."""
        return torch.where(self.admitted, self.rule.recovery_target(target_probs), target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        """Say that h depends on the drafted token: otherwise `EmittedRows` serves."""
        return None


@dataclass(frozen=True, eq=False)
class JudgedOn:
    """A rule that is asked about other rows than those that are sampled from.

    Attributes:
        rule: the rule.
        rows: what it judges on, ``[k, vocabulary]``.
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
