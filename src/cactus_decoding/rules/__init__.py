"""Acceptance rules: one a file, one registry, and their text spelling.

Names are imported when they are asked for: until then, what there is to choose from is known without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cactus_decoding.rules.base import Rule as Rule
    from cactus_decoding.rules.cactus import Cactus as Cactus
    from cactus_decoding.rules.clamped import ClampedRatio as ClampedRatio
    from cactus_decoding.rules.ensemble import Ensemble as Ensemble
    from cactus_decoding.rules.lenience import Lenience as Lenience
    from cactus_decoding.rules.lossless import Lossless as Lossless
    from cactus_decoding.rules.relaxed_greedy import RelaxedGreedy as RelaxedGreedy
    from cactus_decoding.rules.top_k import TopK as TopK
    from cactus_decoding.rules.typical import Typical as Typical
    from cactus_decoding.types import AcceptanceRule

RULE_CLASSES = MappingProxyType(
    {
        "Lossless": "lossless",
        "Cactus": "cactus",
        "ClampedRatio": "clamped",
        "Ensemble": "ensemble",
        "Lenience": "lenience",
        "Typical": "typical",
        "TopK": "top_k",
        "RelaxedGreedy": "relaxed_greedy",
    }
)
"""Every rule's class, and the rule's name, which is also that of its module."""

RULES: Mapping[str, type[Rule]]
"""Every rule by its name."""


def __getattr__(name: str) -> Any:
    """Import a rule's class, or all of them for `RULES`, when it is first asked for."""
    if name == "RULES":
        return _rules()
    if name == "__all__":  # no plain list, of which type checkers would read the part that is spelled out
        return ["RULES", "RULE_CLASSES", "Rule", "as_rule", "parse_rule", *RULE_CLASSES]
    if name == "Rule":
        return import_module(f"{__name__}.base").Rule
    if name in RULE_CLASSES:
        return getattr(import_module(f"{__name__}.{RULE_CLASSES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _rules() -> Mapping[str, type[Rule]]:
    return MappingProxyType({name: __getattr__(each) for each, name in RULE_CLASSES.items()})


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
    from cactus_decoding.arguments.checks import shown
    from cactus_decoding.arguments.spelling import parse

    if not isinstance(text, str):
        raise TypeError(f"a rule's spelling must be a string such as 'cactus:delta=1.0', but is {shown(text)}")
    return parse("rule", text, _rules())


def as_rule(rule: AcceptanceRule | str) -> AcceptanceRule:
    """Return a rule from itself or from its spelling.

    Example:
        >>> as_rule("lossless")
        Lossless()
    """
    from cactus_decoding.arguments.checks import shown
    from cactus_decoding.types import AcceptanceRule

    if isinstance(rule, str):
        return parse_rule(rule)
    if isinstance(rule, type) or not isinstance(rule, AcceptanceRule):  # a class has the methods too
        raise TypeError(f"rule must be an acceptance rule or its spelling, but is {shown(rule)}")
    return rule
