"""Tasks: what an engine is asked, in which order, and what its answers are worth."""

from __future__ import annotations

import pytest
from support.result_files import config_of

from cactus_decoding.lab.evaluation.engines.engine import Answer, Problem
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.tasks.task import Task

PROBLEMS = tuple(Problem(str(place), f"prompt {place}", str(place)) for place in range(4))


class Echo:
    """An engine that answers with the last word of its prompt, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def check_prompt(self, prompt, request):
        if prompt.endswith("2"):
            raise ValueError("the prompt is too long")

    def answer(self, prompt, request):
        self.asked.append((prompt, request))
        return Answer(prompt.split()[-1], "stop")


def test_an_answer_is_asked_for_with_a_seed_of_its_own_and_the_task_s_stop_strings():
    engine, task = Echo(), Task("echo", PROBLEMS, extract=lambda text: text, stop=("\n",))
    config = config_of(problems=3, seed=5, top_k=9)
    found = list(task.answer(engine, config, start=1))
    assert [(problem.id, answer.text, right) for problem, answer, right in found] == [
        ("1", "1", True),
        ("2", "2", True),
    ]
    assert [request.seed for _, request in engine.asked] == [seed_of(5, 1), seed_of(5, 2)]
    assert {(request.stop, request.sampling.top_k) for _, request in engine.asked} == {(("\n",), 9)}


def test_without_an_extractor_or_an_answer_nothing_is_right_or_wrong():
    assert Task("a", PROBLEMS).is_right(PROBLEMS[0], "0") is None
    assert Task("a", PROBLEMS, extract=str).is_right(Problem("x", "y"), "0") is None
    assert Task("a", PROBLEMS, extract=str).is_right(PROBLEMS[0], "1") is False


def test_the_problem_that_does_not_fit_is_named():
    task = Task("echo", PROBLEMS)
    task.check(Echo(), config_of(problems=2))
    with pytest.raises(ValueError, match="task echo, problem '2': the prompt is too long"):
        task.check(Echo(), config_of(problems=3))


def test_other_problems_have_another_digest():
    assert Task("a", PROBLEMS).digest_of(3) == Task("b", PROBLEMS[:3]).digest_of(3)
    assert Task("a", PROBLEMS).digest_of(3) != Task("a", PROBLEMS[::-1]).digest_of(3)
