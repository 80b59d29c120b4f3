"""Answers of our own loop: each as if it were the first, and refused beforehand where it could not be given."""

from __future__ import annotations

from itertools import islice

import pytest
from support.reads import reads

from cactus_decoding import Request, load_pair
from cactus_decoding.lab.evaluation.engines.engine import SHARED, TransformersEngine
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.engines.vllm import VllmEngine
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


def test_examples_that_prompts_share_are_read_once_and_every_answer_begins_behind_them(pair):
    examples = " ".join(f"{problem.prompt} {problem.solution}" for problem in islice(word_problems("train", seed=1), 2))
    prompts = [f"{examples} {problem.prompt}" for problem in islice(word_problems("test", seed=0), 3)]
    engine, request = TransformersEngine(pair.twin()), Request("cactus:delta=1.0", max_new_tokens=12, seed=1)
    for prompt in prompts:
        engine.check_prompt(prompt, request)
    order = [engine.answer(prompt, request) for prompt in prompts]
    shared = len(pair.tokenizer(examples).input_ids)
    assert SHARED < shared <= len(engine._held)
    with reads() as found:
        back = [engine.answer(prompt, request) for prompt in reversed(prompts)]
    assert min(start for start, _ in found) >= shared
    assert [answer.audited for answer in order] == [answer.audited for answer in reversed(back)]
    alone = TransformersEngine(pair.twin()).answer(prompts[0], request)
    assert alone.token_ids == order[0].token_ids


def test_unknown_engines_and_arguments_that_are_not_theirs_are_refused():
    with pytest.raises(ValueError, match="engine must be one of transformers, llama-cpp, vllm"):
        load_engine("magic", "bundled", "bundled", audited=True)
    with pytest.raises(ValueError, match="--engine-args is for --engine vllm"):
        load_engine("transformers", "bundled", "bundled", audited=True, engine_arguments="{}")


@pytest.mark.parametrize("how", ["token", "joint"])
def test_trees_are_refused_by_name_with_the_reason(how: str) -> None:
    request = Request(tree="static=2.2", verification=how)
    with pytest.raises(ValueError, match="vLLM, which has removed tree attention, reads chains of proposals only"):
        VllmEngine("target", "draft", {}).check(request)
