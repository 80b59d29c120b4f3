"""Forecasts: what steps cost by a profile, the best number of proposals by hand, and files that are wrong."""

from __future__ import annotations

import json
import math

import pytest
from support.code_blocks import ROOT
from support.tables import all_of

from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.frontier.costs import CostProfile, forecast, named, read_profiles

PROFILE = CostProfile("ours", "timed", {1: 10.0, 4: 16.0, 8: 20.0}, draft_ms=1.0)
TOKENS = {
    1: Interval(1.8, 1.7, 1.9),
    3: Interval(2.5, 2.4, 2.6),
    7: Interval(3.0, 2.9, 3.1),
    9: Interval(9.0, 9.0, 9.0),
}
GIVEN = {"name": "a", "source": "b", "pass_ms": {"1": 10}, "draft_ms": 1}


def test_a_step_is_a_pass_and_its_draft_and_unknown_beyond_what_was_timed():
    assert [PROFILE.step(k) for k in (0, 1, 3, 5, 7)] == [10.0, 13.0, 19.0, 23.0, 27.0]
    assert math.isnan(PROFILE.step(8))
    whole = CostProfile("mtp", "timed", {1: 10.0}, step_ms={3: 18.0, 5: 22.0})
    assert (whole.step(3), whole.step(4), whole.flat()) == (18.0, 20.0, None)
    assert math.isnan(whole.step(2))
    flat = PROFILE.flat()
    assert flat is not None
    assert [flat.step(k) for k in (0, 3, 7)] == [10.0, 13.0, 17.0]
    assert [*named([PROFILE, whole])] == ["ours", "ours, flat passes", "mtp"]


def test_the_best_number_of_proposals_is_that_of_the_least_time_by_hand():
    found = forecast("lossless", TOKENS, PROFILE, 100)
    assert found is not None
    by_hand = {1: 13 / 1.8, 3: 19 / 2.5, 7: 27 / 3.0}  # that of 9 is not known
    assert found.num_speculative_tokens == min(by_hand, key=by_hand.__getitem__) == 1
    assert found.seconds_per_answer == pytest.approx((1.3 / 1.8, 1.3 / 1.9, 1.3 / 1.7))
    assert (found.tokens_per_second, found.times_as_fast_as_alone) == pytest.approx((1800 / 13, 18 / 13))
    flat = forecast("lossless", TOKENS, PROFILE.flat(), 100)
    assert flat is not None
    assert (flat.num_speculative_tokens, flat.seconds_per_answer.value) == (3, pytest.approx(1.3 / 2.5))
    assert forecast("lossless", {9: TOKENS[9]}, PROFILE, 100) is None


@all_of("value, said", [
    ([], "a JSON object with a list of 'profiles'"),
    ({"profiles": []}, "a JSON object with a list of 'profiles'"),
    ({"profiles": [3]}, "profile 1: a profile must have name, source and pass_ms"),
    ({"profiles": [GIVEN | {"more": 1}]}, "it has \\['draft_ms', 'more', 'name'"),
    ({"profiles": [GIVEN, GIVEN | {"pass_ms": {"2": 10}}]}, "profile 2: pass_ms must have the time of"),
    ({"profiles": [GIVEN | {"pass_ms": {"1": 0}}]}, "pass_ms, 1 must be milliseconds above 0"),
    ({"profiles": [GIVEN | {"pass_ms": {"-1": 2}}]}, "by whole numbers above 0"),
    ({"profiles": [GIVEN | {"draft_ms": "1"}]}, "draft_ms must be milliseconds above 0, but is '1'"),
    ({"profiles": [GIVEN | {"draft_ms": None}]}, "draft_ms or step_ms must be given"),
])  # fmt: skip
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path, value, said):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=said):
        read_profiles(path)


def test_published_costs_are_cited_and_whole():
    profiles = read_profiles(ROOT / "docs/results/costs_gb200.json")
    assert all("graphcore-research/relaxed-spec-dec-repro" in each.source for each in profiles)
    assert all(math.isfinite(each.step(k)) for each in profiles for k in (3, 5, 7, 10, 20))
