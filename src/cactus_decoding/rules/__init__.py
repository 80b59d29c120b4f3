"""Acceptance rules: one a file, one registry, their text spelling, and a way in for rules from elsewhere.

Names are imported when they are asked for: until then, what there is to choose from is known without torch.
"""

from __future__ import annotations

import re
from collections.abc import Container
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from cactus_decoding.arguments.contributed import Contributed
from cactus_decoding.rules.names import registered_rules

if TYPE_CHECKING:
    from cactus_decoding.rules.base import Rule as Rule
    from cactus_decoding.rules.big_little import BigLittle as BigLittle
    from cactus_decoding.rules.cactus import Cactus as Cactus
    from cactus_decoding.rules.cascade import Cascade as Cascade
    from cactus_decoding.rules.clamped import ClampedRatio as ClampedRatio
    from cactus_decoding.rules.ensemble import Ensemble as Ensemble
    from cactus_decoding.rules.fuzzy import Fuzzy as Fuzzy
    from cactus_decoding.rules.kl_gate import KLGate as KLGate
    from cactus_decoding.rules.lenience import Lenience as Lenience
    from cactus_decoding.rules.lossless import Lossless as Lossless
    from cactus_decoding.rules.mars import Mars as Mars
    from cactus_decoding.rules.relaxed_greedy import RelaxedGreedy as RelaxedGreedy
    from cactus_decoding.rules.token_cascade import TokenCascade as TokenCascade
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
        "Cascade": "cascade",
        "TokenCascade": "token_cascade",
        "Fuzzy": "fuzzy",
        "KLGate": "kl_gate",
        "BigLittle": "big_little",
        "Mars": "mars",
    }
)
"""Every rule's class, and the rule's name, which is also that of its module."""

RULES = Contributed[type["Rule"]]({name: f"{__name__}.{name}:{each}" for each, name in RULE_CLASSES.items()})
"""Every rule by its name."""
WAYS_TO_VERIFY = Contributed[Container[str]]({"all": "cactus_decoding.verification.declarations:VERIFICATIONS"})
"""What a rule may be mistaken for."""
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(?=\s*([,:]|$))")


def __getattr__(name: str) -> Any:
    """Import a rule's class when it is first asked for."""
    if name == "__all__":  # no plain list, of which type checkers would read the part that is spelled out
        return ["RULES", "RULE_CLASSES", "Rule", "as_rule", "parse_rule", *RULE_CLASSES]
    if name == "Rule":
        return import_module(f"{__name__}.base").Rule
    if name in RULE_CLASSES:
        return RULES[RULE_CLASSES[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def parse_rule(text: str, *, importing: bool = True) -> Rule:
    """Return the rule that a text spells: a name, then ``:`` and comma-separated ``parameter=value`` pairs.

    The name is one of the package's or of the entry-point group ``cactus_decoding.rules``, or the importable path of a
    class, which a comma follows: ``my_module:MyRule,ratio=0.5``.

    Args:
        text: the spelling.
        importing: whether a path may be imported, which runs code. Where others send spellings it may not: they name
            the package's rules, those of entry points, and paths that this process has parsed before.

    Raises:
        TypeError: if ``text`` is no string.
        ValueError: for an unknown rule or parameter, one that is missing or given twice, a value out of range, or a
            class that cannot be imported, is no rule, or does not judge.

    Example:
        >>> parse_rule("cactus:delta=1.0")
        Cactus(delta=1.0, solver='taylor', divergence='kl', max_ratio=inf)
        >>> str(parse_rule("top_k:k=20,residual=mask"))
        'top_k:k=20,residual=mask'
    """
    from cactus_decoding.arguments.spelling import parse
    from cactus_decoding.arguments.values import shown

    if not isinstance(text, str):
        raise TypeError(f"a rule's spelling must be a string such as 'cactus:delta=1.0', but is {shown(text)}")
    text = text.strip()
    name, _, rest = text.partition(":")
    if name in RULES:
        return parse("rule", text, RULES)
    registered = [each.name for each in registered_rules()]
    if name not in registered:
        if name in WAYS_TO_VERIFY["all"]:
            raise ValueError(f"{name!r} is no rule, but a way to verify: --verification {text}, verification={text!r}")
        if (path := _PATH.match(text)) is None:
            known = dict.fromkeys([*RULES, *registered], cast("type[Rule]", None))
            return parse("rule", text, known)  # says what there is
        name, rest = path[0], text[path.end() :].lstrip(" ,:")
    from cactus_decoding.rules.outside import outside_rule

    rule: Rule = outside_rule(text, name, rest, importing=importing)
    return rule


def recorded_rule(text: str) -> Rule:
    """Return the rule of a file. No path is imported: a rule that this process does not know judges nothing."""
    try:
        return parse_rule(text, importing=False)
    except ValueError:
        if text.partition(":")[0].strip() in RULES or _PATH.match(text.strip()) is None:
            raise
    from cactus_decoding.rules.outside import RecordedRule

    return RecordedRule(text)


def as_rule(rule: AcceptanceRule | str) -> AcceptanceRule:
    """Return a rule from itself or from its spelling.

    Example:
        >>> as_rule("lossless")
        Lossless()
    """
    from cactus_decoding.arguments.values import shown
    from cactus_decoding.types import AcceptanceRule

    if isinstance(rule, str):
        return parse_rule(rule)
    if isinstance(rule, type) or not isinstance(rule, AcceptanceRule):  # a class has the methods too
        raise TypeError(f"rule must be an acceptance rule or its spelling, but is {shown(rule)}")
    return rule
