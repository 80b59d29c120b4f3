"""Rules that are strict at one position and loose at another: one knob, scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from cactus_decoding.rules import RULES, Lossless
from cactus_decoding.rules.base import Rule
from cactus_decoding.types import AcceptanceRule


def check_scalable(rule: AcceptanceRule, asked: str = "importance_scale") -> None:
    """Raise `ValueError` for a rule without a knob of which 0 is lossless.

    Args:
        rule: that is to be scaled.
        asked: the name of what asks for it.

    Example:
        >>> from cactus_decoding.rules import parse_rule
        >>> check_scalable(parse_rule("cactus:delta=1"))
    """
    if not isinstance(rule, Lossless) and not getattr(rule, "scalable", ()):
        known = [name for name, each in RULES.items() if each.scalable]
        raise ValueError(
            f"{asked} multiplies a knob of which 0 is lossless, as {', '.join(known)} have one; the rule "
            f"{rule} has none"
        )


def scaled(rule: AcceptanceRule, factor: float) -> AcceptanceRule:
    """Return a rule with its knob multiplied by a factor, 0 for lossless.

    Raises:
        ValueError: for a rule without such a knob.

    Example:
        >>> from cactus_decoding.rules import parse_rule
        >>> str(scaled(parse_rule("ensemble:weight=0.4"), 0.5))
        'ensemble:weight=0.2'
    """
    check_scalable(rule)
    if not isinstance(rule, Rule):
        return rule
    dataclass_of_knobs: Any = rule
    knobs = {name: getattr(rule, name) for name in rule.scalable}
    return cast(
        Rule, replace(dataclass_of_knobs, **{name: factor * knob for name, knob in knobs.items() if knob is not None})
    )
