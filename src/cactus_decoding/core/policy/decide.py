"""Decides which rule judges a position, and what that costs: here budget, pace and relaxation policy meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cactus_decoding.core.policy.phases import PhaseState
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.types import AcceptanceRule, Decision, DecisionReason

if TYPE_CHECKING:
    from cactus_decoding.core.policy.budget import Budget
    from cactus_decoding.core.policy.position import Position
    from cactus_decoding.core.policy.relaxation import FittedPolicy

_LOSSLESS = Lossless()


class PolicyState(NamedTuple):
    rule: AcceptanceRule  # what spends in this step
    limit: float = math.inf  # in nats; infinite if the budget only measures
    spent: float = 0.0  # in nats; never above the limit
    pace: Pace | None = None
    phase: PhaseState = PhaseState()
    num_charged: int = 0  # tokens on the way to the position that cost something in this step


@dataclass(frozen=True, eq=False)
class Policy:
    """Decides which rule judges each position of a response: its own, or the lossless one where that may not be spent.

    The decision depends on the tokens before the position and on both models' rows, never on the drafted token. So what
    is emitted there has one distribution, and the sum of costs bounds the divergence of the response. Rules of
    temperature 0 are the exception: nothing is drawn, and the cost is what they give up with the drafted token.
    """

    rule: AcceptanceRule
    budget: Budget | None = None
    fitted: FittedPolicy | None = None  # None if the rule may relax everywhere

    @cached_property
    def metered(self) -> bool:
        """Whether costs are known: with a budget, and for rules for temperature 0, which give up log-probability."""
        return self.budget is not None or isinstance(self.rule, GreedyRule)

    @cached_property
    def unconditional(self) -> bool:
        """Whether the rule judges everywhere, and costs are not measured."""
        return not self.metered and self.fitted is None

    def begin(self, prompt_ids: Sequence[int] = ()) -> PolicyState:
        """Return the state after a prompt; `ValueError` for a budget to be paced with a rule without a width."""
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

        Once a limit is used up (or is 0), nothing is afforded, not even what costs nothing, as costs are rounded.
        """
        rule = state.rule
        if self.fitted is not None and not self.fitted.relaxes(rule, state.phase, position):
            return Decision(_LOSSLESS, 0.0 if self.metered else None, DecisionReason.PROTECTED)
        if isinstance(rule, GreedyRule):
            rule = rule.bind_position(position.remaining, position.greatest_logit)
        if not self.metered:
            return Decision(rule)
        cost = position.cost(rule)
        most = None if self.budget is None else self.budget.max_relaxed
        if affords(state, cost) and (most is None or not cost or state.num_charged < most):
            return Decision(rule, cost)
        # a rule that costs nothing emits what lossless does, so it does not fall back even if the limit is used up
        return Decision(_LOSSLESS, cost, DecisionReason.FELL_BACK if cost else DecisionReason.ALLOWED)

    def after(self, state: PolicyState, decision: Decision, token_id: int) -> PolicyState:
        if nats := decision.nats:
            state = state._replace(spent=state.spent + nats, num_charged=state.num_charged + (nats > 0))
        return state if self.fitted is None else state._replace(phase=self.fitted.after(state.phase, [token_id]))

    def end_step(self, state: PolicyState, decisions: Sequence[Decision], token_ids: Sequence[int]) -> PolicyState:
        spent, pace = state.spent, state.pace
        for decision in decisions:  # one by one, as they were afforded: `sum` rounds differently
            spent += decision.nats or 0.0
        if pace is not None:
            width = pace.width(state.limit - state.spent)  # that of this step
            pace = pace.after([each.cost or 0.0 for each in decisions], width, len(token_ids))
        state = state._replace(spent=spent, pace=pace)
        if self.fitted is not None:
            state = state._replace(phase=self.fitted.after(state.phase, token_ids))
        return _paced(state)


def affords(state: PolicyState, cost: float) -> bool:
    # without a limit the measured sum may be infinite
    return state.spent + cost <= state.limit and (state.spent < state.limit or state.limit == math.inf)


def _paced(state: PolicyState) -> PolicyState:
    """Return a state whose rule has the width at which the rest of the budget lasts."""
    if state.pace is None:
        return state
    from cactus_decoding.core.rules import ClampedRatio

    return state._replace(rule=ClampedRatio(width=state.pace.width(state.limit - state.spent)))


def check_paced(rule: AcceptanceRule) -> float:
    from cactus_decoding.core.rules import ClampedRatio

    if not isinstance(rule, ClampedRatio) or not rule.width:
        raise ValueError(
            "expected_tokens moves the width of the clamped ratio, so the rule must be clamped:width=... with a width "
            f"above 0, but is {rule}"
        )
    return rule.width


# cost grows about like this power of the width: quadratically while h stays within its bounds, then more slowly
_POWER = 1.5
_PRIOR_POSITIONS = 8  # the first guess of the cost weighs as much as this many visited positions
# at least this share of the expected length is assumed to lie ahead, so a longer response spends ever more slowly
_MIN_SHARE_AHEAD = 1 / 8
_MAX_WIDTH = 20.0  # a wider ratio bound than e^20 would mean nothing


class Pace(NamedTuple):
    """What the visited positions of a response have cost so far, and at which widths.

    The cost of a position at width 1 is estimated as the sum of costs over the sum of widths to the power 1.5. The next
    width is the one at which the tokens still expected would cost what is left. The first width stands for the first
    few observations. Only earlier steps are looked at, so the limit holds as it does without a pace.
    """

    expected: int  # tokens over which the budget is spread
    effort: float  # sum over visited positions of their widths to the power 1.5
    cost: float  # of these positions, in nats, whether it was afforded or not
    emitted: int = 0  # tokens so far

    @classmethod
    def begin(cls, width: float, limit: float, expected_tokens: int) -> Pace:
        return cls(expected_tokens, _PRIOR_POSITIONS * width**_POWER, _PRIOR_POSITIONS * limit / expected_tokens)

    def width(self, left: float) -> float:
        ahead = max(self.expected - self.emitted, _MIN_SHARE_AHEAD * self.expected)
        affordable = self.effort * left / (ahead * self.cost) if self.cost > 0 else 0.0
        return float(min(affordable ** (1 / _POWER), _MAX_WIDTH))

    def after(self, costs: Sequence[float], width: float, num_emitted: int) -> Pace:
        effort = self.effort + len(costs) * width**_POWER
        return self._replace(effort=effort, cost=self.cost + sum(costs), emitted=self.emitted + num_emitted)
