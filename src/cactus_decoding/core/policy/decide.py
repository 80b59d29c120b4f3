"""What judges a position of a response, what that costs, and why: where budget, pace and relaxation policy meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cactus_decoding.core.policy.phases import PhaseState
from cactus_decoding.core.rules import Lossless, Rule
from cactus_decoding.core.types import AcceptanceRule, judges_untempered

if TYPE_CHECKING:
    from cactus_decoding.core.policy.budget import Budget
    from cactus_decoding.core.policy.position import Position
    from cactus_decoding.core.policy.relaxation import FittedPolicy

_LOSSLESS = Lossless()


class Why(StrEnum):
    """Why a position is judged as it is."""

    ALLOWED = "allowed"
    PROTECTED = "protected"
    """The relaxation policy did not let the rule judge."""
    FELL_BACK = "fell_back"
    """The budget could not afford the rule."""


class Decision(NamedTuple):
    """What was decided about a position.

    Attributes:
        rule: what judges it.
        cost: what the rule allowed there would cost, in nats; 0 where nobody measures, or none is allowed.
        why: why that rule.
    """

    rule: AcceptanceRule
    cost: float = 0.0
    why: Why = Why.ALLOWED

    @property
    def nats(self) -> float:
        """What the position costs if it is visited."""
        return 0.0 if self.why is Why.FELL_BACK else self.cost


class PolicyState(NamedTuple):
    """What a response has spent, and what the next position needs to know of it.

    Attributes:
        rule: what spends in this step.
        limit: the budget in nats; infinite where it only measures.
        spent: nats so far; never above the limit.
        pace: where the budget is spread over the tokens expected.
        phase: of the response, for a relaxation policy that asks.
        num_charged: how many tokens on the way to the position cost something in this step.
    """

    rule: AcceptanceRule
    limit: float = math.inf
    spent: float = 0.0
    pace: Pace | None = None
    phase: PhaseState = PhaseState()
    num_charged: int = 0


@dataclass(frozen=True, eq=False)
class Policy:
    """Decides on the positions of a response: by the rule, or losslessly where that may not, or cannot, be spent.

    What judges a position depends on the tokens before it and on both models' rows, never on the drafted token; so
    what is emitted there has one law, and the sum of costs bounds the divergence of the response. Rules of temperature
    0 are the exception: nothing is drawn, and what they give up with the drafted token is what they cost.

    Attributes:
        rule: the acceptance rule.
        budget: limits, or measures, how far the response's distribution moves; None for neither.
        fitted: the relaxation policy for the model's tokens; None where the rule may relax everywhere.

    Example:
        >>> from cactus_decoding import Budget, ClampedRatio
        >>> Policy(ClampedRatio(width=1.0), Budget(nats=0.5)).begin().limit
        0.5
    """

    rule: AcceptanceRule
    budget: Budget | None = None
    fitted: FittedPolicy | None = None

    @cached_property
    def metered(self) -> bool:
        """Whether costs are known: with a budget, and for rules for temperature 0, which give up log-probability."""
        return self.budget is not None or judges_untempered(self.rule)

    @cached_property
    def unconditional(self) -> bool:
        """Whether the rule judges everywhere, and nobody measures."""
        return not self.metered and self.fitted is None

    def begin(self, prompt_ids: Sequence[int] = ()) -> PolicyState:
        """Return the state behind a prompt; `ValueError` for a budget to be paced with a rule without a width."""
        state = PolicyState(self.rule)
        if self.fitted is not None:
            state = state._replace(phase=self.fitted.begin(prompt_ids))
        if self.budget is None:
            return state
        state = state._replace(limit=self.budget.limit)
        if self.budget.expected_tokens is None:
            return state

        pace = Pace.begin(check_paced(self.rule), self.budget.limit, self.budget.expected_tokens)
        return _paced(state._replace(pace=pace))

    def decide(self, state: PolicyState, position: Position) -> Decision:
        """Decide on a position.

        Of a limit that is used up, such as 0, nothing is afforded, not even what costs nothing: costs are rounded.
        """
        rule: AcceptanceRule | None = state.rule
        if self.fitted is not None:
            rule = self.fitted.rule_at(state.rule, state.phase, position)
        if rule is None:
            return Decision(_LOSSLESS, why=Why.PROTECTED)
        if isinstance(rule, Rule) and rule.needs_place:
            rule = rule.placed(position.remaining, position.greatest_logit)
        if not self.metered:
            return Decision(rule)
        cost = position.cost(rule)
        most = None if self.budget is None else self.budget.max_relaxed
        if affords(state, cost) and (most is None or not cost or state.num_charged < most):
            return Decision(rule, cost)
        # a rule that costs nothing emits what lossless does: that is no falling back, though the limit is used up
        return Decision(_LOSSLESS, cost, Why.FELL_BACK if cost else Why.ALLOWED)

    def after(self, state: PolicyState, decision: Decision, token_id: int) -> PolicyState:
        """Return the state behind a proposed token of this step, had it been kept."""
        if nats := decision.nats:
            state = state._replace(spent=state.spent + nats, num_charged=state.num_charged + (nats > 0))
        return state if self.fitted is None else state._replace(phase=self.fitted.after(state.phase, [token_id]))

    def end_step(self, state: PolicyState, decisions: Sequence[Decision], token_ids: Sequence[int]) -> PolicyState:
        """Return the state behind a step.

        A decision on the position of a rejected token is among those of the step, one on that of a bonus token is not.

        Example:
            >>> from cactus_decoding import Budget, ClampedRatio
            >>> policy, decision = Policy(ClampedRatio(width=1.0), Budget(nats=1.0)), Decision(_LOSSLESS, 0.25)
            >>> policy.end_step(policy.begin(), [decision, decision._replace(why=Why.FELL_BACK)], [3, 4]).spent
            0.25
        """
        spent, pace = state.spent, state.pace
        if self.metered:
            for decision in decisions:  # one by one, as they were afforded: `sum` rounds otherwise
                spent += decision.nats
        if pace is not None:
            width = pace.width(state.limit - state.spent)  # that of this step
            pace = pace.after([each.cost for each in decisions], width, len(token_ids))
        state = state._replace(spent=spent, pace=pace)
        if self.fitted is not None:
            state = state._replace(phase=self.fitted.after(state.phase, token_ids))
        return _paced(state)


def affords(state: PolicyState, cost: float) -> bool:
    """Say whether a position's cost fits into what is left."""
    # without a limit what was measured may be infinite
    return state.spent + cost <= state.limit and (state.spent < state.limit or state.limit == math.inf)


def _paced(state: PolicyState) -> PolicyState:
    """Return a state whose rule has the width at which the rest of the budget lasts."""
    if state.pace is None:
        return state
    from cactus_decoding.core.rules import ClampedRatio

    return state._replace(rule=ClampedRatio(width=state.pace.width(state.limit - state.spent)))


def check_paced(rule: AcceptanceRule) -> float:
    """Return the width that pacing begins with; raise `ValueError` for a rule that has none."""
    from cactus_decoding.core.rules import ClampedRatio

    if not isinstance(rule, ClampedRatio) or not rule.width:
        raise ValueError(
            "expected_tokens moves the width of the clamped ratio, so the rule must be clamped:width=... with a width "
            f"above 0, but is {rule}"
        )
    return rule.width


_POWER = 1.5
"""Cost grows about like this power of the width: quadratically while h stays within its bounds, then more slowly."""
_PRIOR_POSITIONS = 8
"""How many visited positions the first guess of the cost weighs as much as."""
_MIN_SHARE_AHEAD = 1 / 8
"""This share of the expected length is always counted on: beyond it, what is left is spent ever more slowly."""
_MAX_WIDTH = 20.0
"""No wider: the ratio bound e^20 means nothing any more."""


class Pace(NamedTuple):
    """What the visited positions of a response have cost so far, and at which widths.

    The positions' cost over the sum of their widths to the power 1.5 is the cost of a position at width 1; the next
    width is the one at which the tokens still expected cost what is left. The first width stands for the first few
    observations. Only earlier steps are looked at, so the limit holds as without a pace.

    Attributes:
        expected: tokens over which the budget is spread.
        effort: sum over visited positions of their widths to the power 1.5.
        cost: sum of what they would have cost, in nats.
        emitted: tokens so far.

    Example:
        >>> pace = Pace.begin(width=1.0, limit=0.5, expected_tokens=100)
        >>> pace.after([0.1, 0.1], width=1.0, num_emitted=3).width(left=0.3) < 1
        True
    """

    expected: int
    effort: float
    cost: float
    emitted: int = 0

    @classmethod
    def begin(cls, width: float, limit: float, expected_tokens: int) -> Pace:
        """Return the pace of a response that begins with a width and a budget in nats."""
        return cls(expected_tokens, _PRIOR_POSITIONS * width**_POWER, _PRIOR_POSITIONS * limit / expected_tokens)

    def width(self, left: float) -> float:
        """Return the width at which ``left`` nats last."""
        ahead = max(self.expected - self.emitted, _MIN_SHARE_AHEAD * self.expected)
        affordable = self.effort * left / (ahead * self.cost) if self.cost > 0 else 0.0
        return float(min(affordable ** (1 / _POWER), _MAX_WIDTH))

    def after(self, costs: Sequence[float], width: float, num_emitted: int) -> Pace:
        """Return the pace after a step: what its visited positions cost at a width, and how many tokens it emitted."""
        effort = self.effort + len(costs) * width**_POWER
        return self._replace(effort=effort, cost=self.cost + sum(costs), emitted=self.emitted + num_emitted)
