"""Requests to the server: what a completion is then asked for, and a sentence for every mistake."""

from __future__ import annotations

import pytest
from support.tables import all_of

from cactus_decoding.integrations.llama_cpp.request import UnknownModelError, read_completion

USER = {"role": "user", "content": "Hi"}


def read(usual=(), *, chat=False, **body):
    return read_completion(({"messages": [USER]} if chat else {"prompt": "Hi"}) | body, "m", dict(usual), chat=chat)


def test_what_is_not_asked_for_is_what_vllm_takes():
    asked = read()
    assert {name: asked.arguments[name] for name in ("temperature", "top_p", "top_k", "min_p", "stream")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "stream": False,
    }
    assert asked.arguments["seed"] != read().arguments["seed"]
    assert "rule" not in asked.arguments  # the model's own settings decide


def test_names_of_openai_and_ours_become_those_of_a_completion():
    asked = read(
        chat=True, max_completion_tokens=5, acceptance_rule="cactus:delta=1", budget=0.5, protect="json|digits"
    )
    assert asked.arguments["max_tokens"] == 5
    assert asked.arguments["rule"] == "cactus:delta=1"
    assert (asked.arguments["budget"], asked.arguments["protect"]) == (0.5, "digits|json")
    assert read(user="me", n=1, best_of=1, model="m", logit_bias=None).arguments.keys() == read().arguments.keys()
    assert read(prompt=[[1, 2]]).arguments["prompt"] == [1, 2]
    assert read(stop="x").arguments["stop"] == ["x"]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read(chat=True, messages=[{"role": "user", "content": parts}]).arguments["messages"][0]["content"] == "ab"


def test_a_server_s_settings_can_be_taken_back():
    usual = {"rule": "clamped:width=1", "protect": r"\d+", "protect_threshold": 0.1, "relax_within": ["<a>", "</a>"]}
    assert read(usual, protect=r"\d+").arguments["protect"] == r"\d+"  # the server's own pattern may be named
    asked = read(usual, protect="none", relax_within="none")
    assert [asked.arguments[name] for name in ("protect", "protect_threshold", "relax_within")] == [None] * 3


@all_of(
    "body, said",
    [
        ({"acceptance_rules": "lossless"}, "did you mean 'acceptance_rule'"),
        ({"frob": 1}, "known are model, max_tokens"),
        ({"acceptance_rule": "cactis"}, "did you mean 'cactus'"),
        ({"acceptance_rule": ["lossless"]}, "acceptance_rule must be a text"),
        ({"acceptance_rule": "relaxed_greedy:margin=1"}, "temperature 0"),
        ({"budget": -1}, "budget must be in"),
        ({"budget": "much"}, "budget"),
        ({"protect": "a+"}, "protect must be one of digits"),
        ({"protect": 3}, "protect must be a text"),
        ({"protect_threshold": 0.1}, "pattern"),
        ({"max_importance": 0.1}, "importance"),
        ({"relax_within": ["<" * 65, ">"]}, "at most 64 characters"),
        ({"relax_within": [[1] * 65, [2]]}, "at most 64 characters or tokens"),
        ({"relax_within": "x"}, "relax_within"),
        ({"lossless_tokens": -1}, "lossless_tokens"),
        ({"importance": "/etc/passwd"}, "a request may read no file"),
        ({"logprobs": 1}, "logprobs is not served"),
        ({"suffix": "x"}, "suffix is not served"),
        ({"mirostat_mode": 1}, "mirostat_mode is not served"),
        ({"n": 2}, "n must be 1"),
        ({"temperature": -1}, "temperature must be in"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p must be in"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"stop": [""]}, "stop must be"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"stream_options": {"x": 1}}, "stream_options may hold include_usage"),
        ({"logit_bias": [1]}, "logit_bias must be an object"),
        ({"prompt": ["a", "b"]}, "prompt must be one text"),
        ({"prompt": ""}, "prompt must be one text"),
        ({"prompt": None}, "a request must have prompt"),
        ({"messages": [USER]}, "a request has no 'messages'"),
    ],
)
def test_mistakes_are_sentences(body, said):
    with pytest.raises((TypeError, ValueError)) as error:
        read(**body)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": []}, "messages must be a list"),
        ({"messages": [{"content": "x"}]}, "a message must be an object with a role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "neither images nor sounds"),
        ({"messages": [{"role": "user", "content": 3}]}, "content must be text"),
        ({"prompt": "x"}, "a request has no 'prompt'"),
        ({"tools": {}}, "tools must be a list"),
    ],
)
def test_mistakes_of_conversations(body, said):
    with pytest.raises((TypeError, ValueError), match=said):
        read(chat=True, **body)


def test_another_model_is_not_here():
    with pytest.raises(UnknownModelError, match="has the model 'm', but not 'gpt-4'"):
        read(model="gpt-4")
