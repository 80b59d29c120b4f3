"""Recommendations by nats: the best knob within a limit, and lossless wherever that is the better answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.recorded_rows import agreeable_rows, enumerated, some_rows

from cactus_decoding import parse_rule
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.frontier.calibrate import loosest_within, recommendation, recommended, speeds
from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES, LOSSLESS, Relaxation

LENGTHS = (0, 1, 2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("limit", [0.003, 0.05, 0.5])
def test_the_best_knob_is_within_the_limit_and_no_knob_of_a_fine_grid_is_better(name, limit):
    measured, family = Frontier(some_rows()), FAMILIES[name]
    found = loosest_within(measured, family, limit)
    others = [measured.measure(family.spell(knob)) for knob in family.knobs(40)]
    within = [point.acceptance.value for point in others if point.kl.value <= limit]
    if found is None:
        # only a family that is dear at both ends, or whose knob is coarse, may fit in between the scanned knobs
        assert not within
        return
    assert found.kl.value <= limit
    assert enumerated(parse_rule(found.rule), some_rows())["kl"] == pytest.approx(found.kl.value, abs=1e-10)
    assert found.acceptance.value >= max(within, default=0) - 2e-3


def test_a_looser_clamp_than_the_recommended_one_overspends():
    measured = Frontier(some_rows())
    found = loosest_within(measured, FAMILIES["clamped"], 0.02)
    assert measured.measure(f"clamped:width={found.knob * 1.002!r}").kl.value > 0.02


def constant(seconds: dict[Relaxation, list[float]], rounds: int = 6) -> dict:
    """Return step times without any noise, for each rule at each length."""
    return {
        (rule, length): np.full(rounds, values[place])
        for rule, values in seconds.items()
        for place, length in enumerate(LENGTHS)
    }


RULE = Relaxation("clamped:width=3.0")


def test_time_per_token_is_step_time_over_expected_tokens():
    measured = Frontier(some_rows())
    times = constant({LOSSLESS: [1.0, 1.1, 1.2, 1.3, 1.4], RULE: [1.0, 1.1, 1.2, 1.3, 1.4]})
    compared = speeds(measured, RULE, times, current=2)
    for rule, speed in ((LOSSLESS, compared.lossless), (RULE, compared.rule)):
        tokens = [1.0, *(each.value for each in measured.measure(rule.rule).tokens_per_step)]
        expected = [(1 + length / 10) / tokens[length] for length in LENGTHS]
        assert [each.value for each in speed.seconds] == pytest.approx(expected)
        assert speed.best_length == LENGTHS[int(np.argmin(expected))]
        assert not any(each.has_ends for each in speed.seconds)  # three problems
    best = [min(each.value for each in speed.seconds) for speed in (compared.lossless, compared.rule)]
    assert compared.gain.value == pytest.approx(best[0] / best[1])
    assert compared.gain_of_length.value >= 1
    assert compared.gain_at_current.value == pytest.approx(
        compared.lossless.seconds[2].value / compared.rule.seconds[2].value
    )


def recommendation_of(times: dict, current: int = 4, limit: float = 1.0) -> str:
    measured = Frontier(agreeable_rows())
    lossless, chosen = measured.measure("lossless"), measured.measure(RULE.rule)
    return recommendation(chosen, lossless, limit, speeds(measured, RULE, times, current), current)


def test_the_recommendation_says_what_is_faster():
    cheap = [1.0, 1.01, 1.02, 1.03, 1.04]
    assert recommendation_of(constant({LOSSLESS: cheap, RULE: cheap})).startswith(
        f"{RULE} with 4 proposals per step: estimated 1."
    )
    dear = [10 * x for x in cheap]
    text = recommendation_of(constant({LOSSLESS: cheap, RULE: [1.0, *dear[1:]]}))
    assert text.startswith(f"Lossless with 4 proposals per step, its best length: {RULE}, the best rule within the")
    assert text.endswith("as fast, so it is slower.")
    noisy = constant({LOSSLESS: cheap, RULE: cheap}, rounds=6)
    noisy = {key: values * np.array([1.0, 1.5, 0.7, 1.2, 0.8, 1.1])[:: 1 if key[0] == RULE else -1]
             for key, values in noisy.items()}  # fmt: skip
    assert "which chance may explain" in recommendation_of(noisy)


def test_the_recommendation_says_when_a_longer_or_a_shorter_draft_is_the_better_answer():
    cheap, steep = [1.0, 1.01, 1.02, 1.03, 1.04], [1.0, 2.0, 3.0, 4.0, 5.0]
    slow = [1.0, 20.0, 20.0, 20.0, 20.0]
    text = recommendation_of(constant({LOSSLESS: cheap, RULE: slow}), current=1)
    assert "A longer draft alone makes lossless" in text
    assert "with the 1 proposals in use now" in text
    text = recommendation_of(constant({LOSSLESS: steep, RULE: slow}), current=4)
    assert text.startswith("Lossless with no proposals, the target alone")
    assert "A shorter draft alone makes lossless" in text


def test_no_rule_is_recommended_on_problems_or_timings_that_are_too_few_to_tell():
    cheap = {name: [1.0, 1.01, 1.02, 1.03, 1.04] for name in (LOSSLESS, RULE)}
    few_timings = recommendation_of(constant(cheap, rounds=5))
    rows = some_rows()
    measured = Frontier(rows)
    points = measured.measure(RULE.rule), measured.measure("lossless")
    few_problems = recommendation(*points, 9.0, speeds(measured, RULE, constant(cheap), 4), 4)
    for text in (few_timings, few_problems):
        assert text.startswith("Lossless with ")
        assert "(too few problems or timings to tell) as fast, which chance may explain." in text
        assert "nan" not in text


def test_the_recommendation_is_lossless_where_nothing_fits():
    measured = Frontier(some_rows())
    lossless = measured.measure("lossless")
    assert loosest_within(measured, FAMILIES["top_k"], 1e-9) is None
    expected = "Lossless: no rule accepts more than lossless within 1e-09 nats per position."
    assert recommendation(None, lossless, 1e-9, None, 6) == expected
    assert recommendation(lossless, lossless, 1e-9, None, 6) == expected


def test_chances_are_those_that_the_tokens_come_from():
    measured = Frontier(some_rows())
    chances = measured.chances("lossless")
    tokens = measured.tokens(chances).sum(0) / measured.steps.sum()
    assert torch.equal(tokens, torch.tensor([each.value for each in measured.measure("lossless").tokens_per_step],
                                            dtype=torch.float64))  # fmt: skip


# --- with protected tokens ---

DIGITS = relaxation_policy("digits", 0.1)
WORDS = Vocabulary(("1", "2", *"abcde"))
PROTECTED = Relaxation("clamped:width=3.0", DIGITS)


def test_a_protected_rule_may_be_looser_within_the_same_limit():
    measured = Frontier(some_rows(), vocabulary=WORDS)
    plain, protected = (loosest_within(measured, FAMILIES["clamped"], 0.02, each) for each in (RULE.policy, DIGITS))
    assert protected.kl.value <= 0.02
    assert protected.knob > plain.knob
    assert protected.acceptance.value <= plain.acceptance.value  # of all rules the clamped ratio buys most for its nats


@pytest.mark.parametrize(("rows", "supported"), [(agreeable_rows(), True), (some_rows(), False)])
def test_a_protected_rule_is_recommended_where_the_sample_supports_it(rows, supported):
    measured = Frontier(rows, vocabulary=WORDS)
    chosen, lossless = measured.measure(*PROTECTED[:1], policy=DIGITS), measured.measure("lossless")
    assert lossless.acceptance.value < chosen.acceptance.value < measured.measure(RULE.rule).acceptance.value
    cheap = {each: [1.0, 1.01, 1.02, 1.03, 1.04] for each in (LOSSLESS, PROTECTED)}
    compared = speeds(measured, PROTECTED, constant(cheap), 4)
    text = recommendation(chosen, lossless, 1.0, compared, 4)
    if supported:
        assert recommended(compared, 4) == (PROTECTED, 4)
        assert text.startswith("clamped:width=3.0 protecting digits above 0.1 with 4 proposals per step: estimated 1.")
    else:  # three problems
        assert recommended(compared, 4) == (LOSSLESS, compared.lossless.best_length)
        assert text.startswith("Lossless with ")
        assert "its best length: clamped:width=3.0 protecting digits above 0.1, the best rule within the" in text
        assert "(too few problems or timings to tell)" in text
    assert compared.rule.as_dict()["protect"] == "digits"
    assert "protect" not in compared.lossless.as_dict()
    assert recommended(None, 6) == (LOSSLESS, 6)
