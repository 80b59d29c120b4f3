"""What a pair must reach to be bundled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cactus_decoding import Metrics, load_pair
from cactus_decoding.evaluation.score import Score
from cactus_decoding.training.floors import PairScores, check_floors, evaluate_pair


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
