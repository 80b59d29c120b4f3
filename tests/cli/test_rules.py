"""`cactus rules`: all of them."""

from __future__ import annotations

from cactus_decoding import RULES, parse_rule
from cactus_decoding.rules.guarantees import GUARANTEES


def test_rules_are_all_there(run):
    assert {parse_rule(spelling).name for spelling in GUARANTEES} == set(RULES)
    code, out, _ = run("rules")
    assert code == 0
    assert all(spelling in out for spelling in GUARANTEES)
