"""Requests in the shapes that clients send, and what each of these clients reads in the answer."""

from __future__ import annotations

import json

import pytest
from support.tables import all_of

from cactus_decoding.integrations.llama_cpp.answering import prompts_of
from cactus_decoding.integrations.llama_cpp.completion import Completion
from cactus_decoding.integrations.llama_cpp.loading import load_gguf_pair
from cactus_decoding.integrations.llama_cpp.request import read_completion
from cactus_decoding.models.llama_cpp.settings import parse_gguf
from cactus_decoding.zoo.word_problems import EXAMPLES

USER = {"role": "user", "content": EXAMPLES[0].question}
SAID = [{"content": EXAMPLES[0].question, "role": "user"}]
N = {"properties": {"n": {"title": "N", "type": "integer"}}, "required": ["n"], "title": "N", "type": "object"}
STRICT = {
    "type": "json_schema",
    "json_schema": {"schema": N | {"additionalProperties": False}, "name": "N", "strict": True},
}
NUMBERS = {"a": {"title": "A", "type": "integer"}, "b": {"title": "B", "type": "integer"}}
ADD = {"properties": NUMBERS, "required": ["a", "b"], "type": "object"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "add(a, b) -> int\nAdds", "parameters": ADD}}]
TOOL_N = [{"type": "function", "function": {"name": "N", "description": "", "parameters": N}}]
NAMED_N = {"type": "function", "function": {"name": "N"}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SHORT = {"model": "gpt-4o", "max_completion_tokens": 30, "temperature": 0.0}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
CHATS = {
    "openai, create": {"messages": [USER], "model": "any", "max_tokens": 12, "seed": 1},
    "openai, stream": {"messages": [USER], "model": "any", "logprobs": True, "max_tokens": 12, "seed": 1} | USAGE,
    "openai, n": {"messages": [USER], "model": "any", "max_tokens": 8, "n": 2},
    "openai, parse": {
        "messages": [USER], "model": "any", "max_tokens": 60, "response_format": STRICT, "stream": False,
    },
    "openai, tools required": {
        "messages": [USER], "model": "any", "max_tokens": 60, "tool_choice": "required", "tools": TOOLS,
    },
    "openai, tools streamed": {
        "messages": [USER], "model": "any", "max_tokens": 60, "stream": True, "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "add"}},
    },
    "openai, a tool's result": {
        "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALLED]}, RESULT], "model": "any",
        "max_tokens": 8, "tools": TOOLS,
    },
    "openai, everything else": {
        "messages": [
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": EXAMPLES[0].question}], "name": "bob"},
        ],
        "model": "any", "logit_bias": {"50": -1}, "max_completion_tokens": 5, "metadata": {"k": "v"},
        "modalities": ["text"], "parallel_tool_calls": True, "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "p", "reasoning_effort": "low", "safety_identifier": "s", "service_tier": "auto",
        "store": False, "user": "u", "verbosity": "low",
    },
    "openai, our keys": {
        "messages": [USER], "model": "any", "max_tokens": 12, "acceptance_rule": "clamped:width=1",
        "acceptance_report": True,
    },
    "langchain, invoke": SHORT | {"messages": SAID, "stream": False},
    "langchain, stream": SHORT | {"messages": SAID, "n": 1, "seed": 3, "stop": ["!"]} | USAGE,
    "langchain, structured": SHORT | {"messages": SAID, "response_format": STRICT, "stream": False},
    "langchain, JSON": SHORT | {"messages": SAID, "response_format": {"type": "json_object"}, "stream": False},
    "langchain, a function": SHORT | {
        "messages": SAID, "parallel_tool_calls": False, "stream": False, "tool_choice": NAMED_N, "tools": TOOL_N,
    },
    "langchain, tools": SHORT | {"messages": SAID, "stream": False, "tools": TOOLS},
    "langchain, log-probabilities": SHORT | {"messages": SAID, "logprobs": True, "stream": False},
    "langchain, effort": {
        "messages": SAID, "model": "o3-mini", "max_completion_tokens": 5, "reasoning_effort": "low", "stream": False,
    },
    "litellm, completion": {
        "messages": [USER], "model": "x", "logprobs": True, "max_tokens": 6, "n": 2, "presence_penalty": 0.1,
        "seed": 1, "stop": ["."], "top_logprobs": 2, "user": "me",
    },
    "litellm, stream": {"messages": [USER], "model": "x", "max_tokens": 8} | USAGE,
    "litellm, schema": {"messages": [USER], "model": "x", "max_tokens": 60, "response_format": STRICT},
    "litellm, tools": {
        "messages": [USER], "model": "x", "max_tokens": 60, "seed": 1, "tool_choice": "required", "tools": TOOLS,
    } | USAGE,
    "litellm, a tool's result": {
        "messages": [USER, {"role": "assistant", "tool_calls": [CALLED]}, RESULT], "model": "x", "max_tokens": 8,
        "seed": 1, "tools": TOOLS,
    },
    "litellm, hosted_vllm": {"model": "x", "messages": [USER], "max_tokens": 6, "acceptance_rule": "clamped:width=1"},
    "llama-index, chat": {
        "messages": [{"role": "system", "content": "Be brief"}, USER], "model": "x", "max_tokens": 8,
        "stream": False, "temperature": 0.1,
    },
    "llama-index, stream": {"messages": [USER], "model": "x", "max_tokens": 8, "stream": True, "temperature": 0.1},
    "llama-index, tools": {
        "messages": [USER], "model": "x", "max_tokens": 60, "parallel_tool_calls": False, "stream": False,
        "temperature": 0.1, "tool_choice": "required", "tools": TOOLS,
    },
    "open webui, chat": {"model": "m", "messages": [{"role": "system", "content": "User Context:\n"}, USER]} | USAGE,
    "open webui, parameters": {
        "model": "m", "messages": [USER], "max_tokens": 5, "temperature": 0.8, "top_p": 0.9, "min_p": 0.05,
        "frequency_penalty": 0.1, "presence_penalty": 0.1, "reasoning_effort": "low", "seed": 7, "stop": ["\n\n"],
        "logit_bias": {"50": -3}, "top_k": 40, "repeat_penalty": 1.1, "response_format": {"type": "text"},
    } | USAGE,
    "open webui, a title": {"model": "m", "messages": [USER], "stream": False, "max_completion_tokens": 1000},
    "open webui, native tools": {
        "model": "m", "max_tokens": 30, "tools": TOOLS, "messages": [
            USER, {"role": "assistant", "content": "", "tool_calls": [{"index": 0} | CALLED]}, RESULT],
    } | USAGE,
}  # fmt: skip
"""Bodies as the clients send them; of Open WebUI's, what its own settings fill in."""
TEXTS = {
    "openai": {"model": "any", "prompt": "Finn has", "logprobs": 2, "max_tokens": 4},
    "litellm": {"model": "x", "prompt": "Finn has", "max_tokens": 4},
    "llama-index": {"model": "x", "prompt": "Finn has", "max_tokens": 8, "stream": False, "temperature": 0.1},
    "langchain, a batch": {
        "model": "x", "prompt": ["Finn has", "Sam owns"], "frequency_penalty": 0, "logprobs": None, "max_tokens": 5,
        "n": 1, "presence_penalty": 0, "seed": None, "temperature": 0.7, "top_p": 1,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def ask(gguf):
    file = parse_gguf(f"{gguf('target')}:cache=float32,context_size=1024")
    pair = load_gguf_pair(file, f"{gguf('worded')}:cache=float32", kept_prompts=1)
    usual = {"num_speculative_tokens": 4}

    def completion(body):
        asked = read_completion({"seed": 3} | body, usual, chat="messages" in body)
        return Completion(pair, asked, prompts_of(pair, asked), usual, "m"), asked

    return completion


def joined(chunks):
    """Return the choices that a client puts together from a stream."""
    choices = {}
    for chunk in chunks:
        assert set(chunk) >= {"id", "object", "created", "model", "choices"}
        for part in chunk["choices"]:
            delta, choice = (
                part["delta"],
                choices.setdefault(part["index"], {"content": "", "calls": {}, "logprobs": []}),
            )
            choice["content"] += delta.get("content") or ""
            choice["role"] = choice.get("role") or delta["role"]  # the first part has it
            choice["finish_reason"] = part["finish_reason"]  # of the last
            choice["logprobs"] += (part["logprobs"] or {"content": []})["content"]
            for call in delta.get("tool_calls", []):
                assert call["index"] not in choice["calls"]
                choice["calls"][call["index"]] = call
    return [choices[index] | {"calls": [*choices[index]["calls"].values()]} for index in sorted(choices)]


def check_choice(choice, body):
    """Check what clients read of a choice: text, calls, or JSON of the form that was asked for."""
    assert choice["role"] == "assistant"
    ended = choice["finish_reason"]
    assert ended in ("stop", "length", "tool_calls")
    assert (ended == "tool_calls") == bool(choice["calls"])
    for call in choice["calls"]:
        assert call["id"].startswith("call_")
        assert call["type"] == "function"
        assert call["function"]["name"] in [each["function"]["name"] for each in body["tools"]]
        json.loads(call["function"]["arguments"])
    if body.get("tool_choice") and ended != "length":
        assert len(choice["calls"]) == 1
    if body.get("response_format", {"type": "text"})["type"] != "text" and ended == "stop":
        assert isinstance(json.loads(choice["content"]), dict)
    if body.get("logprobs"):
        told = choice["logprobs"]
        assert b"".join(bytes(each["bytes"]) for each in told).decode().startswith(choice["content"])
        assert {len(each["top_logprobs"]) for each in told} <= {body.get("top_logprobs", 0)}
        assert all(each["logprob"] <= 0 for each in told)


@all_of("client", CHATS)
def test_clients_find_in_a_conversation_s_answer_what_they_read(ask, client):
    body = CHATS[client]
    completion, asked = ask(body)
    assert asked.stream == body.get("stream", False)
    if asked.stream:
        chunks = [json.loads(json.dumps(chunk)) for chunk in completion.chunks()]
        choices, last = joined(chunks), chunks[-1]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert ("usage" in last and last["choices"] == []) == ("stream_options" in body)
        usage = last.get("usage")
    else:
        whole = json.loads(json.dumps(completion.whole()))
        assert whole["object"] == "chat.completion"
        choices = [
            each["message"]
            | {"calls": each["message"].get("tool_calls", []), "finish_reason": each["finish_reason"]}
            | {"logprobs": (each["logprobs"] or {"content": []})["content"]}
            for each in whole["choices"]
        ]
        usage = whole["usage"]
        assert ("metrics" in whole) == ("acceptance_report" in body)
    assert len(choices) == body.get("n", 1)
    for choice in choices:
        check_choice(choice, body)
    if usage is not None:
        most = body.get("max_tokens", body.get("max_completion_tokens", 1024)) * len(choices)
        assert 0 < usage["completion_tokens"] <= most
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@all_of("client", TEXTS)
def test_clients_find_in_a_completion_what_they_read(ask, client):
    body = TEXTS[client]
    whole = ask(body)[0].whole()
    assert whole["object"] == "text_completion"
    assert [each["index"] for each in whole["choices"]] == [*range(len(whole["choices"]))]
    for choice in whole["choices"]:
        assert choice["finish_reason"] in ("stop", "length")
        assert (choice["logprobs"] is None) == (body.get("logprobs") is None)
    alone = (
        [ask(body | {"prompt": each})[0].whole() for each in body["prompt"]]
        if isinstance(body["prompt"], list)
        else [whole]
    )
    assert len(whole["choices"]) == len(alone)
    assert [len(each["text"]) > 0 for each in whole["choices"]] == [True] * len(alone)
    assert whole["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)


def test_several_prompts_are_completed_as_each_is_alone(ask):
    same = {"seed": 5, "n": 2, "max_tokens": 12, "echo": True, "temperature": 0}
    prompts = [EXAMPLES[0].prompt, EXAMPLES[1].prompt]
    alone = [choice["text"] for each in prompts for choice in ask(same | {"prompt": each})[0].whole()["choices"]]
    completion, _ = ask(same | {"prompt": prompts})
    assert [choice["text"] for choice in completion.whole()["choices"]] == alone
    parts = [chunk["choices"][0] for chunk in ask(same | {"prompt": prompts})[0].chunks()]
    assert ["".join(part["text"] for part in parts if part["index"] == index) for index in range(4)] == alone
    assert [text.startswith(prompts[index // 2]) for index, text in enumerate(alone)] == [True] * 4
