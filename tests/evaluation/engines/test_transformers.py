"""Answers of our own loop: each as if it were the first, and refused beforehand where it could not be given."""

from __future__ import annotations

import pytest

from cactus_decoding import Request, load_pair
from cactus_decoding.evaluation.engines.engine import TransformersEngine
from cactus_decoding.zoo.word_problems import word_problems

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.fixture(scope="module")
def pair():
    return load_pair()


def test_an_answer_does_not_depend_on_the_one_before(pair):
    engine, problems = TransformersEngine(pair), word_problems("test", seed=0)
    first, second = (next(problems).prompt for _ in range(2))
    requests = [Request(rule, max_new_tokens=30, seed=1) for rule in ("lossless", "cactus:delta=1.0")]
    order = [engine.answer(prompt, request) for prompt in (first, second) for request in requests]
    back = [engine.answer(prompt, request) for prompt in (second, first) for request in reversed(requests)]
    assert [answer.audited for answer in order] == [answer.audited for answer in reversed(back)]


def test_what_the_drafter_cannot_do_is_refused_before_any_work(pair):
    engine = TransformersEngine(pair, audited=False)
    engine.check(Request("clamped:width=1.0", verification="block"))
    lookup = TransformersEngine(load_pair(draft="ngram"), audited=False)
    lookup.check(Request("lossless", verification="block"))
    with pytest.raises(ValueError, match="block verification of a relaxed rule needs a draft model"):
        lookup.check(Request("clamped:width=1.0", verification="block"))


def test_prompts_that_do_not_fit_are_refused(pair):
    engine = TransformersEngine(pair, audited=False)
    engine.check_prompt("Question: Tom has 4 pens.", Request())
    with pytest.raises(ValueError, match="must be shorter than the target's 1024 positions"):
        engine.check_prompt("word " * 3000, Request())
