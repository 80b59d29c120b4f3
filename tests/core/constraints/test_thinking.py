"""Constraints that begin after a thinking part: where it ends, budgets, and every wrong input."""

from __future__ import annotations

import json

import pytest
from support.constraints import json_schema
from support.tables import all_of
from support.thinking_models import MAY_OPEN, thinking_pair, thinking_tokenizer

from cactus_decoding import generate, load_pair
from cactus_decoding.core.constraints.base import Grammar
from cactus_decoding.core.constraints.matching import GrammarVocabulary
from cactus_decoding.core.constraints.thinking import Thinking, ThinkingFirst
from cactus_decoding.core.models.tokenizers import as_chat_prompt

SCHEMA = {
    "type": "object",
    "properties": {"pens": {"enum": [3, 4]}},
    "required": ["pens"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def pair():
    return thinking_pair()


@pytest.fixture(scope="module")
def free():
    return thinking_pair(MAY_OPEN)


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


@all_of(
    "prompt, begins",
    [
        ("Hi\n<think>\n", "opened"),
        ("Hi\n<think>", "opened"),
        ("Hi\n<think>\n\n</think>\n\n", "closed"),
        ("Hi", "may"),
        ("say <think> and be quiet\n", "may"),
    ],
)
def test_the_last_mark_of_a_prompt_says_where_the_answer_begins(prompt, begins):
    tokenizer = thinking_tokenizer()
    thinking = Thinking.of(tokenizer, ids(tokenizer, prompt))
    assert thinking.begins == begins
    assert Thinking.of(load_pair().tokenizer, [1]) is None


def constraint_of(tokenizer, begins, budget=None):
    size, end = len(tokenizer), tokenizer.eos_token_id
    thinking = Thinking.of(
        tokenizer, ids(tokenizer, {"opened": "<think>\n", "may": "Hi", "closed": "</think>"}[begins])
    )
    answer = GrammarVocabulary.of(tokenizer, size, [end]).constraint(Grammar("regex", "[34] pens", "it"))
    return ThinkingFirst(thinking, answer, budget, size, [end]), thinking


def test_anything_but_an_end_may_be_thought_and_the_answer_fits_after_the_mark():
    tokenizer = thinking_tokenizer()
    constraint, thinking = constraint_of(tokenizer, "opened")
    thought, (four, *rest) = ids(tokenizer, "Tom has"), ids(tokenizer, "4 pens")
    assert constraint.allowed(thought).sum() == len(tokenizer) - 1
    assert not constraint.allowed(thought)[tokenizer.eos_token_id]
    done = [*thought, thinking.closing]
    after = constraint.allowed(done).nonzero().flatten().tolist()
    assert after == sorted({*ids(tokenizer, "3"), four, *thinking.lines})
    line = min(thinking.lines)
    assert constraint.allowed([*done, line, line]).nonzero().flatten().tolist() == sorted([*ids(tokenizer, "3"), four])
    assert constraint.forced([*done, line, four], 9) == [*rest, tokenizer.eos_token_id]
    assert constraint.forced(done, 9) == constraint.forced(thought, 9) == []
    assert constraint.may_end([*done, four, *rest])
    assert not constraint.may_end(thought)
    assert constraint.allowed([*done, thinking.opening]) is None


def test_a_model_may_open_the_part_itself_or_answer_at_once():
    tokenizer = thinking_tokenizer()
    constraint, thinking = constraint_of(tokenizer, "may")
    first = sorted([*ids(tokenizer, "3"), *ids(tokenizer, "4")])
    assert constraint.allowed([]).nonzero().flatten().tolist() == sorted([*first, thinking.opening])
    assert constraint.allowed([thinking.opening]).sum() == len(tokenizer) - 1
    assert constraint.forced(ids(tokenizer, "4"), 9) == [*ids(tokenizer, " pens"), tokenizer.eos_token_id]
    assert constraint_of(tokenizer, "may", budget=0)[0].allowed([]).nonzero().flatten().tolist() == first
    assert constraint_of(tokenizer, "closed")[0].allowed([]).nonzero().flatten().tolist() == first


def test_a_spent_budget_forces_the_end_mark():
    tokenizer = thinking_tokenizer()
    constraint, thinking = constraint_of(tokenizer, "opened", budget=3)
    for count in range(3):
        assert constraint.forced([7] * count, 9) == []
    assert constraint.forced([7] * 3, 9) == [thinking.closing]
    assert constraint.allowed([7] * 3).nonzero().flatten().tolist() == [thinking.closing]
    alone = ThinkingFirst(thinking, None, 0, len(tokenizer), [0])
    assert alone.forced([], 9) == [thinking.closing]
    assert alone.allowed([thinking.closing]) is None
    assert bool(alone.allowed([]).sum() == 1)


@pytest.mark.parametrize("budget", [0, 5, 20])
def test_a_response_thinks_within_its_budget_and_then_answers_in_its_form(pair, budget):
    prompt = as_chat_prompt(pair.tokenizer, "Tom has")
    assert prompt.endswith("<think>\n")
    for seed in range(4):
        response = generate(
            pair, prompt, seed=seed, temperature=1.5, response_format=json_schema(SCHEMA), thinking_budget=budget
        )
        assert json.loads(response.content)["pens"] in (3, 4)
        closing = pair.tokenizer.convert_tokens_to_ids("</think>")
        assert response.token_ids.index(closing) <= budget
        assert response.finish_reason == "stop"
        assert pair.tokenizer.decode(response.token_ids[: response.token_ids.index(closing)]).strip("\n") == (
            response.reasoning_content
        )


def test_a_budget_needs_no_form_and_leaves_the_answer_free(pair):
    prompt = as_chat_prompt(pair.tokenizer, "Tom has")
    response = generate(pair, prompt, seed=1, thinking_budget=4, max_new_tokens=12)
    assert response.token_ids[4] == pair.tokenizer.convert_tokens_to_ids("</think>")
    assert response.content != ""


def test_a_model_that_may_think_answers_in_its_form_either_way(free):
    prompt = as_chat_prompt(free.tokenizer, "Tom has")
    response = generate(free, prompt, seed=0, response_format=json_schema(SCHEMA), thinking_budget=9)
    assert json.loads(response.content)["pens"] in (3, 4)


def test_a_relaxed_rule_may_relax_within_the_same_marks(pair):
    prompt = as_chat_prompt(pair.tokenizer, "Tom has")
    marks = tuple(pair.tokenizer.convert_tokens_to_ids(["<think>", "</think>"]))
    given = {"rule": "top_k:k=400", "relax_within": marks, "thinking_budget": 30, "max_new_tokens": 80}
    response = generate(pair, prompt, seed=0, num_speculative_tokens=3, **given)
    end = response.token_ids.index(marks[1])
    assert "relaxed" not in [fate.value for fate in response.fates[end + 1 :]]


def test_wrong_inputs_are_refused_by_a_sentence(pair):
    prompt = as_chat_prompt(pair.tokenizer, "Tom has")
    for budget, error in ((-1, ValueError), ("many", TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="thinking_budget must be"):
            generate(pair, prompt, thinking_budget=budget)
    with pytest.raises(ValueError, match="thinking_budget needs a model whose chat template has marks"):
        generate(load_pair(), "Tom has", thinking_budget=3)
    with pytest.raises(ValueError, match="this prompt opens a thinking part: switch thinking off"):
        generate(pair, prompt, choices=["3", "4"])
    with pytest.raises(TypeError, match="choices and thinking_budget exclude each other"):
        generate(pair, "Tom has", choices=["3", "4"], thinking_budget=3)
    closed = pair.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Tom has"}], tokenize=False, enable_thinking=False
    )
    assert generate(pair, closed, choices=["3", "4"], seed=0).text in ("3", "4")
