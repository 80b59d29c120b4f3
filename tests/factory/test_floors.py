"""What a pair must reach to be bundled."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from cactus_decoding import Metrics, load_pair, zoo
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import word_problems
from factory.disagreement import Disagreement, disagreement
from factory.floors import PairScores, check_floors, check_wording, evaluate_pair


def test_floors():
    metrics = Metrics(steps=10, drafted=60, accepted=30)
    good = PairScores(Score(90, 100), Score(65, 100), Score(90, 100, metrics))
    assert all(floor.met for floor in check_floors(good))
    for bad in (
        replace(good, target=Score(89, 100), draft=Score(10, 100)),
        replace(good, draft=Score(66, 100)),
        replace(good, lossless=Score(90, 100, Metrics(steps=10, drafted=60, accepted=14))),
        replace(good, lossless=Score(90, 100, Metrics(steps=10, drafted=60, accepted=41))),
    ):
        assert sum(not floor.met for floor in check_floors(bad)) == 1
    with pytest.raises(ValueError, match="problems must not be empty"):
        evaluate_pair(load_pair(), load_pair(), [])


def test_floors_of_a_draft_that_disagrees_about_words(tmp_path):
    def scored(accepted):
        return Score(90, 100, Metrics(steps=100, drafted=2000, accepted=accepted))

    good = Disagreement(scored(450), 100, 25, scored(800), scored(1080))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert all(floor.met for floor in check_wording(good, tmp_path))
    for bad in (
        replace(good, at_digits=36),
        replace(good, relaxed=scored(990)),
        replace(good, relaxed=scored(1250)),
        replace(good, lossless=scored(0)),
    ):
        assert [floor.met for floor in check_wording(bad, tmp_path)].count(False) == 1
    with (tmp_path / "model-2.safetensors").open("wb") as file:
        file.truncate(4_000_000)
    assert [floor.met for floor in check_wording(good, tmp_path)] == [True, True, False]
    with pytest.raises(ValueError, match="problems must not be empty"):
        disagreement(load_pair(), [])


def test_a_draft_that_is_its_target_disagrees_about_nothing():
    found = disagreement(load_pair(draft=zoo.path("target")), list(islice(word_problems("validation"), 3)))
    assert (found.rejections, found.digit_share) == (0, 0.0)
    assert found.untruncated.answers == found.lossless.answers == found.relaxed.answers == 3
