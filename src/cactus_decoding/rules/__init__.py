"""Acceptance rules: one a file, one registry, and their text spelling."""

from __future__ import annotations

from types import MappingProxyType

from cactus_decoding.arguments.spelling import parse
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
        >>> str(parse_rule("top_k:k=20,residual=mask"))
        'top_k:k=20,residual=mask'
    """
    if not isinstance(text, str):
        raise TypeError(f"a rule's spelling must be a string such as 'cactus:delta=1.0', but is {text!r}")
    return parse("rule", text, RULES)


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
