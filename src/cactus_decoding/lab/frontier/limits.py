"""The knob of each family that does best within a limit, on KL or on acceptance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from cactus_decoding.core.checks import check_choice, check_number, short_repr
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.rules.base import Family, round_to
from cactus_decoding.lab.frontier.frontier import Frontier, Point
from cactus_decoding.lab.frontier.relaxations import EVERYWHERE

_GRID = 9
_HALVINGS = 12
_ROUNDING = 1e-12  # of a mean in float64: lossless keeps a limit of 0


@dataclass(frozen=True)
class Limit:
    """A limit on the means at the recorded positions: the most KL that a rule may cost, or the least acceptance.

    Within ``kl`` the point of highest acceptance is best, within ``acceptance`` the one of least KL.

    Example:
        >>> str(Limit.parse("kl=0.05"))
        'kl=0.05'
    """

    kind: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Return the limit of a spelling: ``kl=0.05`` or ``acceptance=0.9``; raise `ValueError` for others."""
        kind, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not equals or math.isnan(number):
            raise ValueError(f"--at must be kl=NATS or acceptance=P, such as kl=0.05, but is {short_repr(text)}")
        check_choice("--at", kind, ("kl", "acceptance"))
        check_number(kind, number, 0, math.inf if kind == "kl" else 1)
        return cls(kind, number)

    def __str__(self) -> str:
        return f"{self.kind}={self.value:g}"

    def holds(self, point: Point) -> bool:
        if self.kind == "kl":
            return point.kl.value <= self.value + _ROUNDING
        return point.acceptance.value >= self.value - _ROUNDING

    def worth(self, point: Point) -> tuple[float, float]:
        """Return what is greater for the better one of two points within the limit."""
        gain, cost = point.acceptance.value, -point.kl.value
        return (gain, cost) if self.kind == "kl" else (cost, gain)


def best_in_family(
    measured: Frontier, family: Family, limit: Limit, policy: RelaxationPolicy = EVERYWHERE
) -> Point | None:
    """Return a family's best point within a limit; None if there is none.

    The range is scanned first, because not every family costs more at a larger knob. Then the interval between the best
    knob of the scan and its neighbour beyond the limit is halved repeatedly.
    """
    knobs = family.knobs(_GRID)

    def measure(knob: float) -> Point:
        return measured.measure(family.spell(knob), family.name, knob, policy)

    points = [measure(knob) for knob in knobs]
    within = [place for place, point in enumerate(points) if limit.holds(point)]
    if not within:
        return None
    place = max(within, key=lambda i: limit.worth(points[i]))
    best, beyond = points[place], place + (1 if limit.kind == "kl" else -1)
    if beyond not in range(len(points)) or limit.holds(points[beyond]):
        return best
    inside, outside = knobs[place], knobs[beyond]
    for _ in range(_HALVINGS):
        middle = float(round((inside + outside) / 2)) if family.whole else round_to(math.sqrt(inside * outside), 5)
        if not min(inside, outside) < middle < max(inside, outside):
            break
        point = measure(middle)
        if limit.holds(point):
            inside, best = middle, max(best, point, key=limit.worth)
        else:
            outside = middle
    return best


def best_within(
    measured: Frontier,
    families: Sequence[Family],
    limit: Limit,
    policies: Sequence[RelaxationPolicy],
    report: Callable[[int, str], None] = lambda done, remark: None,
) -> list[Point]:
    """Return the best point of each family under each policy, the best of all first; empty if none is within."""
    found: list[Point] = []
    for done, (family, policy) in enumerate(product(families, policies), start=1):
        if (point := best_in_family(measured, family, limit, policy)) is not None:
            found.append(point)
        report(done, f"{family.label} {policy}".rstrip())
    return sorted(found, key=limit.worth, reverse=True)
