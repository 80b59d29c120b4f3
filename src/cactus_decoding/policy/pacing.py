"""A width that is moved so that a budget lasts for the tokens still expected: state in, state out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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

    The cost of the positions, each divided by its width to the power 1.5, gives the cost of a position at width 1; the
    next width is the one at which the tokens still expected cost what is left. The first width stands for the first few
    observations. Only earlier steps are looked at, so the guarantee of the meter is untouched.

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
