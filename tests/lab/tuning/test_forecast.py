"""Forecasts from pass times and answers: worked out by hand, and beside what the loop really does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.tuning.answers import TunedAnswer
from cactus_decoding.lab.tuning.tuning import Forecast, best_of, forecasts, pays, verdict

TIMES = PassTimes(((1, 1.0), (2, 1.5), (4, 2.0), (8, 3.0)))
COSTS = {"small": replace(TIMES, draft=0.25)}


def answered(
    *token_ids: int, copied: list[list[int]] | None = None, kept: float = 0.5, verify: float = 0.0
) -> TunedAnswer:
    ids = list(token_ids)
    chances = {("small", "lossless"): torch.full((len(ids),), kept, dtype=torch.float64)}
    return TunedAnswer(ids, copied or [[] for _ in ids], chances, verify)


def by_setting(found: list[Forecast]) -> dict[tuple[str, int], Forecast]:
    return {(each.draft, each.num_speculative_tokens): each for each in found}


def test_a_draft_that_is_always_right_takes_the_fewest_steps() -> None:
    found = by_setting(forecasts([answered(*range(12), kept=1.0)], TIMES, COSTS))
    assert found["suffix", 0].tokens_per_second == pytest.approx(1.0)
    assert found["small", 3].tokens_per_second == pytest.approx(12 / (3 * (2.0 + 3 * 0.25)))  # three steps of four
    assert found["small", 3].tokens_per_step == pytest.approx(4.0)
    assert found["small", 4].tokens_per_second == pytest.approx(12 / (3 * (3.0 + 4 * 0.25)))  # 5, 5 and 2 tokens
    assert {k for draft, k in found if draft == "small"} == set(range(1, 8))  # as the widest pass has room for


def test_one_that_is_never_right_costs_its_passes() -> None:
    found = by_setting(forecasts([answered(*range(6), kept=0.0)], TIMES, COSTS))
    assert found["small", 1].speedup.value == pytest.approx(1 / 1.75)
    assert best_of([*found.values()], "lossless").draft == "suffix"


def test_a_draft_that_is_behind_reads_two_tokens() -> None:
    """Of steps whose proposals are kept with chance a, a share of a^k keep all k."""
    answers = [answered(*range(4000), kept=0.5)]
    free = by_setting(forecasts(answers, TIMES, COSTS))
    found = by_setting(forecasts(answers, TIMES, {"small": replace(TIMES, draft=0.25, pair=0.75)}))
    for k in (1, 2, 3):
        steps = 4000 / free["small", k].tokens_per_step
        seconds = 4000 / free["small", k].tokens_per_second + steps * 0.5**k * 0.5
        assert found["small", k].tokens_per_second == pytest.approx(4000 / seconds, rel=1e-3)


def test_copies_are_replayed_step_by_step() -> None:
    #              finds 2 3 9, of which 2 and 3 are right; then nothing; then one that is wrong
    copied = [[2, 3, 9], [3], [], [], [7, 7], []]
    found = by_setting(forecasts([answered(2, 3, 4, 5, 6, 8, copied=copied)], TIMES, COSTS))
    three = found["suffix", 3]
    assert three.tokens_per_step == pytest.approx(6 / 4)  # 2 3 4 | 5 | 6 | 8
    assert three.tokens_per_second == pytest.approx(6 / (2.0 + 1.0 + 2.0 + 1.0))
    one = found["suffix", 1]
    assert one.tokens_per_second == pytest.approx(6 / (1.5 + 1.0 + 1.0 + 1.5 + 1.0))  # 2 3 | 4 | 5 | 6 | 8


def test_verification_takes_its_time_of_every_token() -> None:
    found = by_setting(forecasts([answered(*range(12), kept=1.0, verify=0.5)], TIMES, COSTS))
    assert found["suffix", 0].tokens_per_second == pytest.approx(1 / 1.5)
    assert found["small", 3].tokens_per_second == pytest.approx(12 / (3 * 2.75 + 12 * 0.5))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.floats(0.01, 2.0))
def test_nothing_is_faster_than_its_proposals_allow(chances: list[float], cost: float) -> None:
    answer = TunedAnswer(
        [0] * len(chances), [[]] * len(chances), {("small", "r"): torch.tensor(chances, dtype=torch.float64)}, 0.0
    )
    for each in forecasts([answer], TIMES, {"small": replace(TIMES, draft=cost)}):
        k = each.num_speculative_tokens
        assert 1 - 1e-9 <= each.tokens_per_step <= k + 1 + 1e-9
        if each.draft == "small":
            assert each.tokens_per_second <= (k + 1) / (TIMES.of(k + 1) + k * cost) + 1e-9


def test_a_rule_is_recommended_for_itself_and_look_up_for_any() -> None:
    def one(draft: str, rule: str, speed: float) -> Forecast:
        return Forecast(draft, rule, 3, speed, 2.0, Interval(speed, speed, speed))

    found = [one("suffix", "lossless", 1.1), one("small", "lossless", 1.3), one("small", "loose", 1.2)]
    assert best_of(found, "loose").rule == "loose"
    assert best_of(found, "lossless").tokens_per_second == 1.3
    assert best_of([one("suffix", "lossless", 1.5), *found], "loose").draft == "suffix"


def test_what_hardly_pays_is_said_not_to() -> None:
    nan = float("nan")
    for value, words in ((1.03, "at best 3 % faster"), (0.8, "at best 25 % slower")):
        told = Forecast("small", "lossless", 1, 1.0, 1.5, Interval(value, nan, nan))
        assert not pays(told)
        assert verdict(told) == f"Do not speculate here: {words} (small with 1 proposal)"
    for interval, said in (
        (Interval(1.2, 0.9, 1.5), "It cannot be told whether to speculate here: small with 1 proposal: 1.20 times"),
        (Interval(0.98, 0.9, 1.06), "It cannot be told"),
        (Interval(1.0, 0.97, 1.03), "Do not speculate here"),  # less than counts, whatever it is
    ):
        told = Forecast("small", "lossless", 1, 1.0, 1.5, interval)
        assert not pays(told)
        assert verdict(told).startswith(said)
    told = Forecast("small", "lossless", 7, 1.0, 1.5, Interval(1.5, 1.4, 1.62))
    assert (
        verdict(told) == "small with 7 proposals: 1.50 times as fast as none (95 % interval over prompts: 1.40 to 1.62)"
    )
