"""The script that soaks a server: how it judges what it saw. The soak itself takes longer than a test may."""

from __future__ import annotations

import time

from scripts.vllm_soak import LEAVING, STAYING, Soak, differences, growth

RULE = "clamped:width=1.5"


def test_growth_of_memory_is_between_the_second_and_the_last_quarter() -> None:
    assert growth([(0, 50), (30, 100), (45, 100), (80, 103), (95, 103)], 0, 100) == 0.03
    assert growth([(80, 1)], 0, 100) is None


def test_counters_that_differ_from_what_was_reported_are_told() -> None:
    soak = Soak([], time.monotonic())
    soak.reported[RULE].update(
        verified_positions=7, accepted_tokens=5, relaxed_tokens=1.5, protected_positions=2, nats=0.5
    )
    counted = {
        f'cactus_{name}_total{{rule="{RULE}"}}': value
        for name, value in (("verified_positions", 7), ("accepted_tokens", 5), ("relaxed_tokens", 1.5),
                            ("protected_positions", 2), ("audited_nats", 0.5))
    }  # fmt: skip
    assert list(differences(soak, counted)) == []
    counted[f'cactus_accepted_tokens_total{{rule="{RULE}"}}'] = 6
    (said,) = differences(soak, counted)
    assert "accepted_tokens" in said
    assert "6" in said


def test_rules_of_clients_that_leave_are_counted_apart() -> None:
    rules = [one["acceptance_rule"] for one in STAYING]
    assert len(set(rules)) == len(rules)
    assert not set(rules) & {one.get("acceptance_rule") for one in LEAVING}
