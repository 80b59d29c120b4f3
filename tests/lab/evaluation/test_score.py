"""Scores of word problems: right answers, and an exact interval."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.intervals import proportion
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import word_problems


def test_right_answers_are_counted_and_their_interval_is_exact():
    problem, score = next(word_problems("test", seed=0)), Score()
    assert score.interval == (0.0, 1.0)
    for text in (problem.solution, f"#### {problem.answer + 1}", "nothing"):
        score.add(problem, SimpleNamespace(text=text, metrics=Metrics(steps=2, seconds=0.5)))
    assert (score.right, score.answers, score.metrics.steps) == (1, 3, 6)
    assert score.accuracy == pytest.approx(1 / 3)
    assert score.interval == proportion(1, 3)[1:]
    assert score.seconds_per_answer == pytest.approx(0.5)
