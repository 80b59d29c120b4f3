"""Recommendations by nats and by score: the best rule within a limit, and lossless where that is the better answer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.recorded_rows import agreeable_rows, enumerated, some_rows
from support.result_files import made, several

from cactus_decoding import Request, parse_rule
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.intervals import problems_to_show
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.frontier.calibrate import advise, loosest_within, recommendation, recommended, speeds
from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.relaxations import (
    EVERYWHERE,
    FAMILIES,
    LOSSLESS,
    Relaxation,
    answers_are_numbers,
    asking,
    parse_policies,
)

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


DIGITS = relaxation_policy("digits", 0.1)
WORDS = Vocabulary(("1", "2", *"abcde"))
PROTECTED = Relaxation("clamped:width=3.0", DIGITS)


def test_a_protected_rule_may_be_looser_within_the_same_limit():
    measured = Frontier(some_rows(), vocabulary=WORDS)
    plain, protected = (loosest_within(measured, FAMILIES["clamped"], 0.02, each) for each in (RULE.policy, DIGITS))
    assert measured.measure(f"clamped:width={plain.knob * 1.002!r}").kl.value > 0.02
    assert protected.kl.value <= 0.02
    assert protected.knob > plain.knob
    assert protected.acceptance.value <= plain.acceptance.value  # of all rules the clamped ratio buys most for its nats
    assert loosest_within(measured, FAMILIES["top_k"], 1e-9) is None  # and lossless is recommended
    lossless = measured.measure("lossless")
    for nothing in (None, lossless):
        assert recommendation(nothing, lossless, 1e-9, None, 6) == (
            "Lossless: no rule accepts more than lossless within 1e-09 nats per position."
        )


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


def test_the_fastest_rule_whose_score_holds_is_chosen():
    (advice,) = advise(summarise(several()), "sums", 0.07)
    assert advice.baseline.config.num_speculative_tokens == 4
    assert advice.chosen.config.rule == "clamped:width=1.0"
    assert [summary.config.rule for summary in advice.candidates][:2] == ["cactus:delta=1.0"] * 2  # faster, but wrong
    assert advice.faster
    assert advice.text.startswith("clamped:width=1.0 ×4: 0.900 times the wall time per answer (95 %: ")
    assert "score +0.000 (95 %: -0.060 to +0.060)" in advice.text
    assert "the fastest of 2 settings within the limit: confirm it on fresh problems" in advice.text


def test_lossless_is_chosen_where_no_rule_is_faster_or_none_holds():
    slower = [r for r in several() if r.config.rule in ("lossless", "clamped:width=0.1")]
    (advice,) = advise(summarise(slower), "sums", 0.07)
    assert not advice.faster
    assert advice.text.startswith("Lossless with 4 proposals per step, its best length: clamped:width=0.1 ×4, the")
    assert advice.text.endswith(": slower.")
    worse = [r for r in several() if r.config.rule in ("lossless", "cactus:delta=1.0")]
    (advice,) = advise(summarise(worse), "sums", 0.07)
    assert advice.chosen is None
    assert "no setting of another rule is known to lose at most 0.07" in advice.text
    (advice,) = advise(summarise([r for r in several() if r.config.rule == "lossless"]), "sums", 0.07)
    assert advice.text.endswith("no other rule was measured.")
    alone = [r for r in several() if r.config.num_speculative_tokens] + [made("lossless", 0, seconds=0.1)]
    (advice,) = advise(summarise(alone), "sums", 0.07)
    assert advice.text.endswith("The target alone is faster than all of them on this machine.")


@pytest.mark.parametrize(("limit", "words"), [
    (0.0, "allow a drop above 0"), (0.05, "60 problems are too few to tell: it takes at least 72"),
])  # fmt: skip
def test_problems_that_all_agree_certify_no_more_than_they_can(limit, words):
    (advice,) = advise(summarise(several()), "sums", limit)
    tied = advice.candidates[2].metrics["score_difference"]
    assert tied.value == 0
    assert tied.low == pytest.approx(0.025 ** (1 / 60) - 1)
    assert advice.chosen is None
    assert not advice.faster
    assert words in advice.text
    assert problems_to_show(0.05) == 72
    (advice,) = advise(summarise(several(problems=72)), "sums", 0.05)
    assert advice.chosen.config.rule == "clamped:width=1.0"


@pytest.mark.parametrize("problems", [2, 12])
def test_ties_of_a_few_problems_do_not_read_as_certainty(problems):
    (advice,) = advise(summarise(several(problems=problems)), "sums", 0.9)
    assert "+0.000 to +0.000" not in advice.text
    assert "nan" not in advice.text
    if problems < 6:
        assert not advice.faster  # nor is it known to be faster


def test_each_pair_gets_its_own_advice_and_without_what_it_needs_none_is_given():
    both = several() + several(draft="ngram")
    assert [advice.config.draft for advice in advise(summarise(both), "sums", 0.07)] == ["small", "ngram"]
    for results, task, said in (
        (several(), "riddles", "there is no result of task 'riddles'; there are: sums"),
        ([made("lossless", 4, scored=False)], "sums", "has no score"),
        ([made("cactus:delta=1.0", 4)], "sums", "has no lossless run to compare with"),
    ):
        with pytest.raises(ValueError, match=said):
            advise(summarise(results), task, 0.05)


def with_protection(**changes):
    """Return results in which the fastest rule is wrong, and as fast and right where it protects digits."""
    digits = {"protect": "digits", "protect_threshold": 0.01, "lossless_tokens": 0, "relax_within": None}
    return [
        made("lossless", 4, seconds=1.0, accepted=0.5, **changes),
        made("clamped:width=3.0", 6, seconds=0.7, right=0.6, accepted=0.8, nats=0.5, **changes),
        made("clamped:width=3.0", 6, seconds=0.75, accepted=0.7, nats=0.3, **digits, **changes),
    ]


def test_a_protected_rule_is_recommended_where_its_score_holds_and_the_sample_can_carry_it():
    (advice,) = advise(summarise(with_protection()), "sums", 0.07)
    labels = [summary.config.label for summary in advice.candidates]
    assert labels == ["clamped:width=3.0 ×6", "clamped:width=3.0 protecting digits ×6"]
    assert advice.within == (advice.chosen,)
    assert advice.recommended is advice.chosen
    assert advice.text.startswith("clamped:width=3.0 protecting digits ×6: 0.75")
    (advice,) = advise(summarise(with_protection(problems=40)), "sums", 0.07)
    assert (advice.chosen, advice.recommended) == (None, advice.baseline)
    assert "40 problems are too few to tell: it takes at least" in advice.text


def test_a_relaxation_is_its_rule_and_its_policy():
    plain, protected = (
        Relaxation("clamped:width=3.0"),
        Relaxation("clamped:width=3.0", relaxation_policy("digits", 0.02)),
    )
    assert len({plain, protected, Relaxation("clamped:width=3.0")}) == 2
    assert str(plain) == "clamped:width=3.0"
    assert str(protected) == "clamped:width=3.0 protecting digits above 0.02"
    assert plain.as_dict() == {"rule": "clamped:width=3.0"}  # as in files that know of no policy
    kept = protected.as_dict()
    assert (kept["rule"], kept["protect"], kept["protect_threshold"]) == ("clamped:width=3.0", "digits", 0.02)
    request = asking(Request(seed=3), protected, 4)
    assert (str(request.rule), request.policy, request.seed) == ("clamped:width=3.0", protected.policy, 3)
    assert asking(request, LOSSLESS, 0).policy == RelaxationPolicy()


def test_policies_of_a_command_line():
    assert parse_policies([]) == []
    assert parse_policies(["none", "digits", "none"]) == [EVERYWHERE, relaxation_policy("digits")]
    assert parse_policies(["none", "digits"], protect_threshold=0.1)[1].protection.threshold == 0.1
    for given, threshold, message in (
        (["none"], 0.1, "--protect-threshold is that of protected tokens"),
        ([""], None, "but is empty"),
        (["("], None, "is neither"),
        (["digits"], 1.5, "threshold"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_policies(given, protect_threshold=threshold)


def test_digits_are_proposed_where_answers_are_numbers(tmp_path):
    assert answers_are_numbers(parse_task("word_problems:split=validation", 5))
    path = tmp_path / "t.jsonl"
    for answer, extract, expected in ((7, "last_number", True), ("B", "letter", False), (None, "none", False)):
        path.write_text(json.dumps({"prompt": "?", "answer": answer} if answer else {"prompt": "?"}) + "\n")
        assert answers_are_numbers(parse_task(f"jsonl:path={path},extract={extract}")) == expected
