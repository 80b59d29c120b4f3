"""`cactus rules`: all of them."""

from __future__ import annotations

from cactus_decoding import RULES


def test_rules_are_all_there(run):
    code, out, _ = run("rules")
    assert code == 0
    for name, rule in RULES.items():
        assert name in out
        assert all(preset.spelling in out for preset in rule.presets)
