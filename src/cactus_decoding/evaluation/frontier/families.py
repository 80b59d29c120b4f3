"""Families of rules: one knob each, from strict to loose."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cactus_decoding.arguments.checks import check_integer

_TOP_K = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Family:
    """A rule with one free parameter.

    Attributes:
        name: what result files call it.
        label: what people call it.
        spell: from the knob to the rule's spelling; the looser the rule, the larger the knob.
        strict: the knob where the range begins.
        loose: the knob where it ends.
        whole: whether the knob is an integer.
    """

    name: str
    label: str
    spell: Callable[[float], str]
    strict: float
    loose: float
    whole: bool = False

    def knobs(self, points: int) -> list[float]:
        """Return ``points`` knobs over the whole range, evenly spaced in the logarithm; integers are listed once."""
        check_integer("points", points, 2)
        if self.whole:
            step = max(1, math.ceil(len(_TOP_K) / points))
            return [float(k) for k in _TOP_K if self.strict <= k <= self.loose][::step]
        ratio = (self.loose / self.strict) ** (1 / (points - 1))
        return [round_to(self.strict * ratio**i) for i in range(points)]


def round_to(value: float, digits: int = 4) -> float:
    """Round to significant digits, so that spellings are short.

    >>> round_to(0.123456), round_to(123456.0)
    (0.1235, 123500.0)
    """
    return float(f"{value:.{digits}g}")


def _typical(recovery: str) -> Callable[[float], str]:
    def spell(looseness: float) -> str:
        threshold = 1 / looseness  # alpha as Medusa ties it to the threshold
        return f"typical:threshold={round_to(threshold)},alpha={round_to(math.sqrt(threshold))},recovery={recovery}"

    return spell


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("cactus", "Cactus, closed form", lambda x: f"cactus:delta={x!r}", 1e-4, 1e3),
        Family("cactus_exact", "Cactus, exact solver", lambda x: f"cactus:delta={x!r},solver=exact", 1e-4, 30.0),
        Family("clamped", "clamped ratio", lambda x: f"clamped:width={x!r}", 0.01, 50.0),
        Family("clamped_max_kl", "KL cap per position", lambda x: f"clamped:max_kl={x!r}", 1e-4, 20.0),
        Family("ensemble", "interpolation", lambda x: f"ensemble:weight={x!r}", 1e-3, 1.0),
        Family("lenience", "lenience", lambda x: f"lenience:lenience={round_to(1 / x)!r}", 1.01, 1e6),
        Family("typical", "typical, greedy recovery", _typical("greedy"), 1.05, 1e6),
        Family("typical_sample", "typical, sampled recovery", _typical("sample"), 1.05, 1e6),
        Family("top_k", "top-k, sampled recovery", lambda x: f"top_k:k={int(x)}", 1, 1000, whole=True),
        Family("top_k_mask", "top-k, mask recovery", lambda x: f"top_k:k={int(x)},residual=mask", 1, 1000, whole=True),
    )
}
"""Every family by its name. `relaxed_greedy` is not among them: it is for temperature 0, where nothing is sampled."""


def parse_families(names: list[str]) -> list[Family]:
    """Return families by name, all of them for an empty list.

    Raises:
        ValueError: for an unknown name.
    """
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise ValueError(f"unknown rule family {unknown[0]!r}; known are {', '.join(FAMILIES)}")
    return [FAMILIES[name] for name in dict.fromkeys(names)] or list(FAMILIES.values())
