"""Rules by the number of requests in a step: the table, and what a wrong one is told."""

from __future__ import annotations

import pytest

from cactus_decoding import parse_rule
from cactus_decoding.contrib.load_rules.table import LoadRule

TABLE = [[1, 1, 0.0], [2, 4, 0.25], [5, 16, 0.5], [17, 64, 1.0]]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, None), (2, "cactus:delta=0.2"), (4, "cactus:delta=0.2"), (5, "cactus:delta=0.4"), (16, "cactus:delta=0.4"),
     (17, "cactus:delta=0.8"), (64, "cactus:delta=0.8"), (1000, "cactus:delta=0.8")],
)  # fmt: skip
def test_the_share_of_a_batch_scales_a_request_s_own_knob(size: int, expected: str | None) -> None:
    rule = LoadRule.parse(TABLE).rule(parse_rule("cactus:delta=0.8"), size)
    assert rule == (None if expected is None else parse_rule(expected))


def test_no_share_is_looser_than_what_a_request_asks_for() -> None:
    load = LoadRule.parse(TABLE)
    for spelling in ("clamped:width=2", "clamped:max_kl=0.1", "ensemble:weight=0.3", "cactus:delta=1,solver=exact"):
        own = parse_rule(spelling)
        for size in range(1, 70):
            rule = load.rule(own, size)
            for knob in own.scalable if rule is not None else ():
                assert (getattr(rule, knob) or 0) <= (getattr(own, knob) or 0)
        assert load.rule(own, 64) == own


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("table.json", "load_rule must be rows such as"),
        ([], "load_rule must be rows such as"),
        ({"1": 0.5}, "load_rule must be rows such as"),
        ([[1, 4]], r"must be \[smallest, largest, share\]"),
        ([[1, 4, 0.5, 2]], r"must be \[smallest, largest, share\]"),
        (["142"], r"must be \[smallest, largest, share\]"),
        ([[1, 4, 1.5]], "the share of a row of load_rule must be in"),
        ([[1, 4, -0.1]], "the share of a row of load_rule must be in"),
        ([[1, 4, "1"]], "the share of a row of load_rule must be a number"),
        ([[1, 4, float("nan")]], "the share of a row of load_rule must be in"),
        ([[1, 4.0, 0.5]], "the largest batch of a row of load_rule must be an integer"),
        ([[True, 4, 0.5]], "the smallest batch of a row of load_rule must be an integer"),
        ([[2, 4, 0.5]], "must begin at 1"),
        ([[1, 4, 0.5], [6, 9, 1]], "must begin at 5"),
        ([[1, 4, 0.5], [4, 9, 1]], "must begin at 5"),
        ([[1, 4, 0.5], [5, 4, 1]], "must begin at 5"),
        ([[0, 4, 0.5]], "must be at least 1"),
    ],
)
def test_a_wrong_table_is_refused(given: object, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        LoadRule.parse(given)


def test_a_rule_without_a_knob_of_which_0_is_lossless_is_refused() -> None:
    with pytest.raises(ValueError, match="has none"):
        LoadRule.parse(TABLE).rule(parse_rule("lenience:lenience=0.5"), 3)
