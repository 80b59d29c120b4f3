"""How rules look in pictures: each in its own way, whatever its colour."""

from __future__ import annotations

import pytest

from cactus_decoding.lab.frontier.relaxations import FAMILIES, parse_families
from cactus_decoding.lab.reporting.pictures import STYLES, family_of


def test_families_cover_every_rule_that_samples_and_have_a_look_of_their_own():
    assert {family_of(family.spell(family.strict)) for family in FAMILIES.values()} == set(FAMILIES)
    assert set(FAMILIES) <= set(STYLES)
    looks = [(style.marker, style.colour, style.hollow) for style in STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert len({(style.marker, style.hollow) for style in STYLES.values()}) == len(STYLES)
    with pytest.raises(ValueError, match="unknown rule family 'cactis'; known are cactus, cactus_exact"):
        parse_families(["cactis"])
