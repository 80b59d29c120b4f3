"""The root of an increasing function of one number, in as few evaluations as can be."""

from __future__ import annotations

import math
from collections.abc import Callable

_MAX_EVALUATIONS = 300


def find_root(
    function: Callable[[float], tuple[float, bool]], left: float, right: float, start: float, slope: float
) -> tuple[float, float]:
    """Return the ends of a bracket around the root of an increasing function, by a safeguarded secant method.

    The secant through the last two points is followed while it leads into the bracket and, over any two steps, either
    the bracket or the value halves; otherwise the bracket is halved. A root beyond
    ``left`` or ``right`` is taken to be there.

    Args:
        function: returns its value, which may be infinite, and whether that is close enough to zero to stop.
        left: least point allowed.
        right: greatest point allowed.
        start: where to begin.
        slope: about how steep the function is there.

    Returns:
        Twice the point where the function said to stop; or else the ends, the function being at most 0 at the first
        and more than 0 at the second, of a bracket that no number is left in.

    Example:
        >>> low, high = find_root(lambda x: (x**3 - 8, False), 0.0, 10.0, 1.0, 3.0)
        >>> round(low, 12), round(high, 12)
        (2.0, 2.0)
    """
    low, high = -math.inf, math.inf  # until a point is known to be to the left or right
    x, seen = start, [(math.nan, math.inf)] * 3  # the last points and values
    widths = [right - left] * 3
    for _ in range(_MAX_EVALUATIONS):
        value, close = function(x)
        if close:
            return x, x
        low, high = (x, high) if value <= 0 else (low, x)
        ends = max(low, left), min(high, right)
        widths, seen = [*widths[1:], ends[1] - ends[0]], [*seen[1:], (x, value)]
        if math.isfinite(seen[1][1]) and value != seen[1][1]:
            slope = (value - seen[1][1]) / (x - seen[1][0])
        # an end that was not visited yet may be the root: only then is a guess beyond it worth a look
        guess = min(max(x - value / slope, left), right) if slope > 0 else math.nan
        stalled = widths[2] > widths[0] / 2 and abs(value) > abs(seen[0][1]) / 2
        if stalled or not low < guess < high:
            guess = ends[0] + (ends[1] - ends[0]) / 2
            if not low < guess < high:
                break
        x = guess
    return max(low, left), min(high, right)
