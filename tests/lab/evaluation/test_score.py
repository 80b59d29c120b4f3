"""Scores: right answers are counted, and steps are what an enumeration of outcomes takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.expected_steps import expected_steps
from support.tables import all_of

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.intervals import proportion
from cactus_decoding.lab.evaluation.score import Score, steps_taken
from cactus_decoding.zoo.word_problems import word_problems


@all_of("k", [0, 1, 2, 3, 6])
def test_steps_are_those_of_an_enumeration(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    texts = [torch.rand(n, generator=generator, dtype=torch.float64) for n in (1, 2, 5, 8, 3)]
    problem = torch.cat([torch.full((len(text),), number) for number, text in enumerate(texts)])
    found = steps_taken(torch.cat(texts), problem, k).tolist()
    assert found == pytest.approx([expected_steps(text.tolist(), k) for text in texts], abs=1e-12)


def test_steps_that_stop_at_the_first_rejection_only_are_told_apart() -> None:
    # the wrong variant: a step's tokens without the chance that the next one begins inside it
    chances = torch.tensor([0.9, 0.1, 0.9, 0.1], dtype=torch.float64)
    wrong = 4 / float((1 + chances + chances * chances.roll(-1)).mean())
    assert abs(float(steps_taken(chances, torch.zeros(4, dtype=torch.long), 2)[0]) - wrong) > 0.05


def test_right_answers_are_counted_and_their_interval_is_exact():
    problem, score = next(word_problems("test", seed=0)), Score()
    assert score.interval == (0.0, 1.0)
    for text in (problem.solution, f"#### {problem.answer + 1}", "nothing"):
        score.add(problem, SimpleNamespace(text=text, metrics=Metrics(steps=2, seconds=0.5)))
    assert (score.right, score.answers, score.metrics.steps) == (1, 3, 6)
    assert score.accuracy == pytest.approx(1 / 3)
    assert score.interval == proportion(1, 3)[1:]
    assert score.seconds_per_answer == pytest.approx(0.5)
