"""Acceptance rules: one a file, one registry, and their text spelling."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import MappingProxyType

from cactus_decoding.rules.base import Rule
from cactus_decoding.rules.cactus import Cactus
from cactus_decoding.rules.clamped import ClampedRatio
from cactus_decoding.rules.ensemble import Ensemble
from cactus_decoding.rules.lenience import Lenience
from cactus_decoding.rules.lossless import Lossless
from cactus_decoding.rules.relaxed_greedy import RelaxedGreedy
from cactus_decoding.rules.top_k import TopK
from cactus_decoding.rules.typical import Typical
from cactus_decoding.types import AcceptanceRule

RULES = MappingProxyType(
    {rule.name: rule for rule in (Lossless, Cactus, Ensemble, Lenience, ClampedRatio, Typical, TopK, RelaxedGreedy)}
)
"""Every rule by its name."""

__all__ = [
    "RULES",
    "Cactus",
    "ClampedRatio",
    "Ensemble",
    "Lenience",
    "Lossless",
    "RelaxedGreedy",
    "Rule",
    "TopK",
    "Typical",
    "as_rule",
    "parse_rule",
]


def parse_rule(text: str) -> Rule:
    """Return the rule that a text spells: a name, then ``:`` and comma-separated ``parameter=value`` pairs.

    Raises:
        TypeError: if ``text`` is no string.
        ValueError: for an unknown rule or parameter, one that is missing or given twice, or a value out of range.

    Example:
        >>> parse_rule("cactus:delta=1.0")
        Cactus(delta=1.0, solver='taylor', divergence='kl', max_ratio=inf)
        >>> parse_rule("top_k:k=20,residual=mask").spelling
        'top_k:k=20,residual=mask'
    """
    if not isinstance(text, str):
        raise TypeError(f"a rule's spelling must be a string such as 'cactus:delta=1.0', but is {text!r}")
    name, _, rest = text.strip().partition(":")
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r} in {text!r}; known are {', '.join(RULES)}")
    rule = RULES[name]
    allowed = {field.name: str(field.type) for field in fields(rule)}
    values: dict[str, float | int | str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in allowed:
            known = ", ".join(allowed) or "none"
            raise ValueError(f"{part!r} in {text!r} is not parameter=value; parameters of {name} are: {known}")
        if key in values:
            raise ValueError(f"{key} is given twice in {text!r}")
        values[key] = _convert(key, value, allowed[key], text)
    missing = [f.name for f in fields(rule) if f.name not in values and f.default is MISSING]
    if missing:
        raise ValueError(f"{text!r} lacks {', '.join(missing)}; write for example '{name}:{missing[0]}=1'")
    return rule(**values)  # type: ignore[arg-type]


def _convert(key: str, value: str, kind: str, text: str) -> float | int | str:
    """Turn the text of a parameter into its type."""
    if kind == "str":
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        expected = "an integer" if kind == "int" else "a number"
        raise ValueError(f"{key} must be {expected}, but is {value!r} in {text!r}") from None


def as_rule(rule: AcceptanceRule | str) -> AcceptanceRule:
    """Return a rule from itself or from its spelling.

    Example:
        >>> as_rule("lossless")
        Lossless()
    """
    if isinstance(rule, str):
        return parse_rule(rule)
    if isinstance(rule, type) or not isinstance(rule, AcceptanceRule):  # a class has the methods too
        raise TypeError(f"rule must be an acceptance rule or its spelling, but is {rule!r}")
    return rule
