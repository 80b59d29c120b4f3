"""How a budget is spent: by one rule until it is gone, or by a width that is moved so that it lasts."""

from __future__ import annotations

from collections.abc import Sequence

from cactus_decoding.rules import ClampedRatio
from cactus_decoding.types import AcceptanceRule

_POWER = 1.5
"""Cost grows about like this power of the width: quadratically while h stays within its bounds, then more slowly."""
_PRIOR_POSITIONS = 8
"""How many visited positions the first guess of the cost weighs as much as."""
_LEAST_SHARE_AHEAD = 1 / 8
"""This share of the expected length is always counted on: beyond it, what is left is spent ever more slowly."""
_WIDEST = 20.0
"""No wider: the ratio bound e^20 means nothing any more."""


class Greedy:
    """Spends with one and the same rule for as long as the budget lasts."""

    def __init__(self, rule: AcceptanceRule) -> None:
        """Keep the rule."""
        self._rule = rule

    def rule(self, left: float) -> AcceptanceRule:
        """Return the rule for the next step."""
        return self._rule

    def observe(self, costs: Sequence[float], num_emitted: int) -> None:
        """Learn nothing."""


class Paced:
    """Moves the width so that what is left of the budget lasts for the tokens still expected.

    The cost of the positions visited so far, each divided by its width to the power 1.5, gives the cost of a position
    at width 1; the next width is the one at which the tokens still expected cost what is left. The first width stands
    for the first few observations. Only earlier steps are looked at, so the guarantee of the meter is untouched.

    Args:
        width: the first width, above 0.
        limit: the budget in nats.
        expected_tokens: the length over which to spread it.

    Example:
        >>> paced = Paced(width=1.0, limit=0.5, expected_tokens=100)
        >>> paced.observe([0.1, 0.1], num_emitted=3)
        >>> paced.rule(left=0.3).width < 1
        True
    """

    def __init__(self, width: float, limit: float, expected_tokens: int) -> None:
        """Begin a response."""
        self._expected, self._emitted = expected_tokens, 0
        self._effort = _PRIOR_POSITIONS * width**_POWER
        self._cost = _PRIOR_POSITIONS * limit / expected_tokens
        self._width = width

    def rule(self, left: float) -> ClampedRatio:
        """Return the clamped ratio of the width at which ``left`` nats last."""
        ahead = max(self._expected - self._emitted, _LEAST_SHARE_AHEAD * self._expected)
        affordable = self._effort * left / (ahead * self._cost) if self._cost > 0 else 0.0
        self._width = min(affordable ** (1 / _POWER), _WIDEST)
        return ClampedRatio(width=self._width)

    def observe(self, costs: Sequence[float], num_emitted: int) -> None:
        """Learn what the last step's visited positions cost at the last width."""
        self._cost += sum(costs)
        self._effort += len(costs) * self._width**_POWER
        self._emitted += num_emitted
