"""Recommendations by score: the fastest rule whose score holds, and lossless wherever that is the better answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.result_files import made, several

from cactus_decoding.lab.evaluation.intervals import problems_to_show
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.frontier.calibrate import advise


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


def test_each_pair_gets_its_own_advice():
    both = several() + several(draft="ngram")
    assert [advice.config.draft for advice in advise(summarise(both), "sums", 0.07)] == ["small", "ngram"]


def test_advice_without_what_it_needs_is_refused():
    with pytest.raises(ValueError, match="there is no result of task 'riddles'; there are: sums"):
        advise(summarise(several()), "riddles", 0.05)
    with pytest.raises(ValueError, match="has no score"):
        advise(summarise([made("lossless", 4, scored=False)]), "sums", 0.07)
    with pytest.raises(ValueError, match="has no lossless run to compare with"):
        advise(summarise([made("cactus:delta=1.0", 4)]), "sums", 0.07)


def test_seeds_are_gathered_before_advice():
    more = [replace(result, config=result.config.asking(seed=1)) for result in several()]
    (advice,) = advise(summarise(several() + more), "sums", 0.07)
    assert advice.chosen.seeds == [0, 1]


def with_protection(**changes):
    """Return results in which the fastest rule is wrong, and as fast and right where it protects digits."""
    digits = {"protect": "digits", "protect_threshold": 0.01, "lossless_tokens": 0, "relax_within": None}
    return [
        made("lossless", 4, seconds=1.0, accepted=0.5, **changes),
        made("clamped:width=3.0", 6, seconds=0.7, right=0.6, accepted=0.8, nats=0.5, **changes),
        made("clamped:width=3.0", 6, seconds=0.75, accepted=0.7, nats=0.3, **digits, **changes),
    ]


def test_a_protected_rule_is_recommended_where_its_score_holds():
    (advice,) = advise(summarise(with_protection()), "sums", 0.07)
    assert [summary.config.label for summary in advice.candidates] == [
        "clamped:width=3.0 ×6",
        "clamped:width=3.0 protecting digits ×6",
    ]
    assert advice.within == (advice.chosen,)
    assert advice.recommended is advice.chosen
    assert advice.text.startswith("clamped:width=3.0 protecting digits ×6: 0.75")


def test_a_protected_rule_is_not_recommended_on_a_sample_that_cannot_carry_it():
    (advice,) = advise(summarise(with_protection(problems=40)), "sums", 0.07)
    assert advice.chosen is None
    assert advice.recommended is advice.baseline
    assert "40 problems are too few to tell: it takes at least" in advice.text
