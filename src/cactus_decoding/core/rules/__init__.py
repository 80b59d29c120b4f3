"""Acceptance rules by name, how they are spelled as text, and how rules from elsewhere come in."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import cast

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.rules.base import GreedyRule as GreedyRule
from cactus_decoding.core.rules.base import LiftRule as LiftRule
from cactus_decoding.core.rules.base import RowRule as RowRule
from cactus_decoding.core.rules.base import Rule as Rule
from cactus_decoding.core.rules.base import registered_rules
from cactus_decoding.core.rules.big_little import BigLittle as BigLittle
from cactus_decoding.core.rules.cactus import Cactus as Cactus
from cactus_decoding.core.rules.cascade import Cascade as Cascade
from cactus_decoding.core.rules.clamped import ClampedRatio as ClampedRatio
from cactus_decoding.core.rules.contrastive import Contrastive as Contrastive
from cactus_decoding.core.rules.ears import Ears as Ears
from cactus_decoding.core.rules.ensemble import Ensemble as Ensemble
from cactus_decoding.core.rules.fuzzy import Fuzzy as Fuzzy
from cactus_decoding.core.rules.kl_gate import KLGate as KLGate
from cactus_decoding.core.rules.lenience import Lenience as Lenience
from cactus_decoding.core.rules.lossless import Lossless as Lossless
from cactus_decoding.core.rules.mars import Mars as Mars
from cactus_decoding.core.rules.relaxed_greedy import RelaxedGreedy as RelaxedGreedy
from cactus_decoding.core.rules.token_cascade import TokenCascade as TokenCascade
from cactus_decoding.core.rules.top_k import TopK as TopK
from cactus_decoding.core.rules.typical import Typical as Typical
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.spelling import parse
from cactus_decoding.core.types import AcceptanceRule

__all__ = ["RULES", "parse_rule"]

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        Lossless, Cactus, ClampedRatio, Ensemble, Lenience, Typical, TopK, RelaxedGreedy, Cascade, TokenCascade, Fuzzy,
        KLGate, BigLittle, Mars, Ears, Contrastive,
    )
}  # fmt: skip
"""Every rule by its name."""
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(?=\s*([,:]|$))")


def parse_rule(text: str, *, importing: bool = True, listed: Collection[str] = ()) -> Rule:
    """Return the rule that a text spells: a name, then ``:`` and comma-separated ``parameter=value`` pairs.

    The name is one of the package's or of the entry-point group ``cactus_decoding.rules``. It may also be the
    importable path of a class, with a comma after it: ``my_module:MyRule,ratio=0.5``.

    Args:
        text: the spelling.
        importing: whether a path may be imported, which runs code. Set it to False for spellings that others send:
            these may then name the package's rules, those of entry points, and paths that this process has parsed
            before.
        listed: the package's rules that an error about an unknown one lists, by default all.

    Raises:
        TypeError: if ``text`` is not a string.
        ValueError: for an unknown rule or parameter, one that is missing or given twice, a value out of range, or a
            class that cannot be imported, is not a rule, or does not judge.

    Example:
        >>> parse_rule("cactus:delta=1.0")
        Cactus(delta=1.0, solver='taylor', divergence='kl', max_ratio=inf)
        >>> str(parse_rule("top_k:k=20,residual=mask"))
        'top_k:k=20,residual=mask'
    """
    if not isinstance(text, str):
        raise TypeError(f"a rule's spelling must be a string such as 'cactus:delta=1.0', but is {short_repr(text)}")
    text = text.strip()
    name, _, rest = text.partition(":")
    if name in RULES:
        return parse("rule", text, RULES)
    registered = [each.name for each in registered_rules()]
    if name not in registered:
        if name in VERIFICATIONS:
            raise ValueError(f"{name!r} is no rule, but a way to verify: --verification {text}, verification={text!r}")
        if (path := _PATH.match(text)) is None:
            known = dict.fromkeys([*(listed or RULES), *registered], cast("type[Rule]", None))
            return parse("rule", text, known)  # raises, and lists the rules
        name, rest = path[0], text[path.end() :].lstrip(" ,:")
    from cactus_decoding.core.rules.outside import outside_rule  # imported here, as it imports this module

    rule: Rule = outside_rule(text, name, rest, importing=importing)
    return rule


def recorded_rule(text: str) -> Rule:
    """Return the rule that a file names, without importing a path: an unknown one becomes a `RecordedRule`."""
    try:
        return parse_rule(text, importing=False)
    except ValueError:
        if text.partition(":")[0].strip() in RULES or _PATH.match(text.strip()) is None:
            raise
    from cactus_decoding.core.rules.outside import RecordedRule

    return RecordedRule(text)


def as_rule(rule: AcceptanceRule | str) -> AcceptanceRule:
    if isinstance(rule, str):
        return parse_rule(rule)
    if isinstance(rule, type) or not isinstance(rule, AcceptanceRule):  # a class passes isinstance too
        raise TypeError(f"rule must be an acceptance rule or its spelling, but is {short_repr(rule)}")
    return rule
