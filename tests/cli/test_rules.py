"""`cactus rules`: all of them."""

from __future__ import annotations

from cactus_decoding import RULES, parse_rule


def test_rules_are_all_there(run):
    spellings = [preset.spelling for rule in RULES.values() for preset in rule.presets]
    assert {parse_rule(spelling).name for spelling in spellings} == set(RULES)
    code, out, _ = run("rules")
    assert code == 0
    assert all(spelling in out for spelling in spellings)
    accepting = ", ".join(name for name, rule in RULES.items() if rule.judges_untempered)
    assert f"all but {' and '.join(accepting.rsplit(', ', 1))} accept only" in " ".join(out.split())
