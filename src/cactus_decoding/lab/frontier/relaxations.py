"""A point of the frontier: a rule, and the policy that says where it may relax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.rules import RULES, parse_rule
from cactus_decoding.core.rules.base import Family, GreedyRule, registered_rules
from cactus_decoding.core.rules.outside import outside_class, respelled

EVERYWHERE = RelaxationPolicy()


class Relaxation(NamedTuple):
    """A rule's spelling, and the policy that says where it may relax; elsewhere the lossless rule decides."""

    rule: str
    policy: RelaxationPolicy = EVERYWHERE

    def __str__(self) -> str:
        return f"{self.rule} {self.policy}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """Return both for JSON, flat; a policy that allows relaxing everywhere is left out."""
        return {"rule": self.rule} | ({} if self.policy.everywhere else self.policy.as_dict())


FAMILIES: dict[str, Family] = {
    family.name: family for rule in RULES.values() if not issubclass(rule, GreedyRule) for family in rule.families
}
"""Families by name. Rules for temperature 0 have none here: nothing is sampled there."""


def parse_families(names: Sequence[str], rules: Sequence[str] = ()) -> list[Family]:
    """Return families by name, all of the package's for no names, and one of a single point for each rule."""
    found = dict[str, Family]()
    for name in names or FAMILIES:
        found |= {name: FAMILIES[name]} if name in FAMILIES else {each.name: each for each in _outside(name)}
    return [*found.values(), *(_point(str(parse_rule(text))) for text in rules)]


def _point(rule: str) -> Family:
    return Family(rule, rule, lambda _: rule, 1, 1, whole=True)


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
