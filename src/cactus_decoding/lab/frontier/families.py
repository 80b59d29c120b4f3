"""The families of all rules that sample: one knob each, from strict to loose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cactus_decoding.core.mistakes import suggestion
from cactus_decoding.core.rules import RULES, parse_rule
from cactus_decoding.core.rules.family import Family
from cactus_decoding.core.rules.names import registered_rules
from cactus_decoding.core.rules.outside import outside_class, respelled

FAMILIES: dict[str, Family] = {
    family.name: family for rule in RULES.values() if not rule.judges_untempered for family in rule.families
}
"""Every family by its name. Rules for temperature 0 have none here: nothing is sampled there."""


def parse_families(names: Sequence[str], rules: Sequence[str] = ()) -> list[Family]:
    """Return families by name, the package's for an empty list, and one of one point for each rule's spelling.

    The name of a rule from outside the package means its own families.
    """
    found = dict[str, Family]()
    for name in names or FAMILIES:
        found |= {name: FAMILIES[name]} if name in FAMILIES else {each.name: each for each in _outside(name)}
    return [*found.values(), *(_point(str(parse_rule(text))) for text in rules)]


def _outside(name: str) -> list[Family]:
    if ":" not in name and name not in {each.name for each in registered_rules()}:
        raise ValueError(f"unknown rule family {name!r}; known are {', '.join(FAMILIES)}{suggestion(name, FAMILIES)}")
    described = outside_class(name)
    if not described.families:
        raise ValueError(f"rule {name!r} declares no families: give --rule with its knobs instead")
    return [
        replace(each, name=f"{name} {each.name}", spell=lambda knob, each=each: respelled(described, each.spell(knob)))  # type: ignore[misc]
        for each in described.families
    ]


def _point(rule: str) -> Family:
    return Family(rule, rule, lambda _: rule, 1, 1, whole=True)
