"""Recommendations by score: the fastest rule whose score holds, and lossless wherever that is the better answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.result_files import made, several

from cactus_decoding.evaluation.frontier.calibrate_score import advise
from cactus_decoding.evaluation.runs.summary import summarise


def test_the_fastest_rule_whose_score_holds_is_chosen():
    (advice,) = advise(summarise(several()), "sums", 0.05)
    assert advice.baseline.config.num_speculative_tokens == 4
    assert advice.chosen.config.rule == "clamped:width=1.0"
    assert [summary.config.rule for summary in advice.candidates][:2] == ["cactus:delta=1.0"] * 2  # faster, but wrong
    assert advice.faster
    assert advice.text.startswith("clamped:width=1.0 ×4: 0.900 times the wall time per answer (95 %: ")
    assert "score +0.000 (95 %: +0.000 to +0.000)" in advice.text
    assert "the fastest of 2 settings within the limit: confirm it on fresh problems" in advice.text


def test_lossless_is_chosen_where_no_rule_is_faster_or_none_holds():
    slower = [r for r in several() if r.config.rule in ("lossless", "clamped:width=0.1")]
    (advice,) = advise(summarise(slower), "sums", 0.05)
    assert not advice.faster
    assert advice.text.startswith("Lossless with 4 proposals per step, its best length: clamped:width=0.1 ×4, the")
    assert advice.text.endswith(": slower.")
    worse = [r for r in several() if r.config.rule in ("lossless", "cactus:delta=1.0")]
    (advice,) = advise(summarise(worse), "sums", 0.05)
    assert advice.chosen is None
    assert "no setting of another rule is known to lose at most 0.05" in advice.text
    (advice,) = advise(summarise([r for r in several() if r.config.rule == "lossless"]), "sums", 0.05)
    assert advice.text.endswith("no other rule was measured.")
    alone = [r for r in several() if r.config.num_speculative_tokens] + [made("lossless", 0, seconds=0.1)]
    (advice,) = advise(summarise(alone), "sums", 0.05)
    assert advice.text.endswith("The target alone is faster than all of them on this machine.")


def test_each_pair_gets_its_own_advice():
    both = several() + several(draft="ngram")
    assert [advice.config.draft for advice in advise(summarise(both), "sums", 0.05)] == ["small", "ngram"]


def test_advice_without_what_it_needs_is_refused():
    with pytest.raises(ValueError, match="there is no result of task 'riddles'; there are: sums"):
        advise(summarise(several()), "riddles", 0.05)
    with pytest.raises(ValueError, match="has no score"):
        advise(summarise([made("lossless", 4, scored=False)]), "sums", 0.05)
    with pytest.raises(ValueError, match="has no lossless run to compare with"):
        advise(summarise([made("cactus:delta=1.0", 4)]), "sums", 0.05)


def test_seeds_are_gathered_before_advice():
    more = [replace(result, config=result.config.asking(seed=1)) for result in several()]
    (advice,) = advise(summarise(several() + more), "sums", 0.05)
    assert advice.chosen.seeds == [0, 1]
