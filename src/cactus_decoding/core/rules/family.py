"""A family: a rule with one knob, from strict to loose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cactus_decoding.core.checks import check_integer

_WHOLE_KNOBS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Family:
    """A rule with one free parameter, its knob, which result files call ``name`` and people ``label``."""

    name: str
    label: str
    spell: Callable[[float], str]  # the larger the knob, the looser the rule
    strict: float  # the range of the knob
    loose: float
    whole: bool = False  # whether the knob is an integer

    def knobs(self, points: int) -> list[float]:
        """Return ``points`` knobs over the whole range, evenly spaced in the logarithm; integers from a fixed list."""
        check_integer("points", points, 2)
        if self.whole:
            step = max(1, math.ceil(len(_WHOLE_KNOBS) / points))
            return [float(k) for k in _WHOLE_KNOBS if self.strict <= k <= self.loose][::step]
        ratio = (self.loose / self.strict) ** (1 / (points - 1))
        return [round_to(self.strict * ratio**i) for i in range(points)]


def round_to(value: float, digits: int = 4) -> float:
    """Round to significant digits, so that spellings are short.

    >>> round_to(0.123456), round_to(123456.0)
    (0.1235, 123500.0)
    """
    return float(f"{value:.{digits}g}")
