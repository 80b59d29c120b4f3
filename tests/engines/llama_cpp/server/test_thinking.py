"""Reasoning in messages and streams of GGUF files, its budget, and forms that begin after it."""

import json
from functools import partial

import pytest
from support.gguf_files import completions
from support.tables import all_of
from support.thinking_models import thinking_pair

from cactus_decoding.engines.llama_cpp.llama import CactusLlama
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.server.completion import read_completion
from scripts.bundled_gguf import write_gguf

CHAT = [{"role": "user", "content": "Tom has 3 pens"}]
FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"enum": [3, 4]}, "maxItems": 2}}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    pair = thinking_pair()
    path = tmp_path_factory.mktemp("thinking") / "thinks.gguf"
    write_gguf(pair.target.model.float(), pair.tokenizer, path, "float32")
    return path


@pytest.fixture(scope="module")
def ask(path):
    pair = load_gguf_pair(parse_gguf(f"{path}:cache=float32,context_size=512"), "suffix", kept_prompts=1)
    return partial(completions(pair, num_speculative_tokens=2), messages=CHAT)


@pytest.mark.parametrize("budget", [0, 6])
def test_reasoning_comes_beside_the_content_whole_and_in_parts(ask, budget):
    same = {"thinking_budget": budget, "seed": 5, "response_format": FORM, "logprobs": True, "temperature": 1.5}
    whole, chunks = ask(**same).whole(), [*ask(**same).chunks()]
    (choice,) = whole["choices"]
    assert all(each in (3, 4) for each in json.loads(choice["message"]["content"]))
    thought = choice["message"].get("reasoning_content", "")
    assert bool(thought) == (budget > 0)
    assert "think>" not in thought + choice["message"]["content"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]
    order = [name for delta in deltas for name in delta if name != "role" and delta[name]]
    assert order == sorted(order, reverse=True)  # reasoning_content before content
    told = [each for chunk in chunks for each in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [each["token"] for each in told] == [each["token"] for each in choice["logprobs"]["content"]]
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_part_that_is_cut_is_reasoning_alone(ask):
    (choice,) = ask(max_tokens=5, seed=1, response_format=FORM).whole()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert choice["message"]["reasoning_content"]


def test_a_template_that_is_told_not_to_think_answers_at_once(ask):
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    (choice,) = ask(seed=1, response_format=FORM, **off).whole()["choices"]
    assert "reasoning_content" not in choice["message"]
    assert isinstance(json.loads(choice["message"]["content"]), list)
    (choice,) = ask(seed=1, guided_choice=["yes", "no"], **off).whole()["choices"]
    assert choice["message"]["content"] in ("yes", "no")


def test_relaxing_may_be_limited_to_the_same_marks():
    body = {"messages": CHAT, "acceptance_rule": "clamped:width=1", "relax_within": "thinking"}
    asked = read_completion(body, {}, chat=True, thinking=((7,), (8,)))
    assert asked.request.as_dict()["relax_within"] == [7, 8]
    with pytest.raises(ValueError, match="the server knows no tokens around a thinking part"):
        read_completion(body, {}, chat=True)


@all_of(
    "body, message",
    [
        ({"thinking_budget": -1}, "thinking_budget must be at least 0, but is -1"),
        ({"thinking_budget": "many"}, "thinking_budget must be an integer, but is 'many'"),
        ({"guided_choice": ["yes", "no"]}, "this prompt opens a thinking part: switch thinking off"),
    ],
)
def test_wrong_inputs_are_refused_by_a_sentence(ask, body, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ask(**body)


def test_a_call_has_a_budget_too(path):
    llama = CactusLlama(path, draft="suffix", n_ctx=512, n_threads=1, verbose=False)
    try:
        prompt, closing = llama.tokenize(b"Tom has <think>", special=True), llama.tokenize(b"</think>", False, True)
        tokens = list[int]()
        llama.on_step = lambda request, outcome: tokens.extend(outcome.token_ids)
        llama.create_completion(prompt, max_tokens=12, seed=1, thinking_budget=4)
        assert tokens[4:5] == closing
        with pytest.raises(ValueError, match="thinking_budget must be"):
            llama.create_completion(prompt, thinking_budget=-1)
    finally:
        llama.close()
