"""The families of all rules that sample: one knob each, from strict to loose."""

from __future__ import annotations

from collections.abc import Sequence

from cactus_decoding.arguments.suggestions import suggestion
from cactus_decoding.rules import RULES
from cactus_decoding.rules.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family for rule in RULES.values() if not rule.judges_untempered for family in rule.families
}
"""Every family by its name. Rules for temperature 0 have none here: nothing is sampled there."""


def parse_families(names: Sequence[str]) -> list[Family]:
    """Return families by name, all of them for an empty list.

    Raises:
        ValueError: for an unknown name.
    """
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise ValueError(
            f"unknown rule family {unknown[0]!r}; known are {', '.join(FAMILIES)}{suggestion(unknown[0], FAMILIES)}"
        )
    return [FAMILIES[name] for name in dict.fromkeys(names)] or list(FAMILIES.values())
