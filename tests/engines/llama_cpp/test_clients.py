"""Requests in the shapes that clients send, and what each of these clients reads in the answer."""

from __future__ import annotations

import json

import pytest
from support.client_requests import CHATS, TEXTS
from support.tables import all_of

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.server.completion import Completion, prompts_of, read_completion
from cactus_decoding.zoo.word_problems import EXAMPLES
from scripts.bundled_gguf import write_bundled

TEMPLATE = """{{ bos_token }}{% if tools %}Tools: {{ tools | tojson }}
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls or [] %}{{ call.function | tojson }}
{% endfor %}{% endfor %}Answer:"""
"""One that has a place for tools, which the bundled one does not."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory, gguf):
    target = write_bundled("target", tmp_path_factory.mktemp("chat"), "float32", TEMPLATE)
    file = parse_gguf(f"{target}:cache=float32,context_size=1024")
    pair = load_gguf_pair(file, f"{gguf('worded')}:cache=float32", kept_prompts=1)
    usual = {"num_speculative_tokens": 4}

    def completion(body):
        asked = read_completion({"seed": 3} | body, usual, chat="messages" in body)
        return Completion(pair, asked, prompts_of(pair, asked), "m"), asked.body

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
                if "id" in call:  # the first part of a call
                    assert call["index"] not in choice["calls"]
                    choice["calls"][call["index"]] = call | {"function": {**call["function"]}}
                else:
                    choice["calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return [choices[index] | {"calls": [*choices[index]["calls"].values()]} for index in sorted(choices)]


def check_choice(choice, body):
    """Check what clients read of a choice: text, calls, or JSON of the form that was asked for."""
    assert choice["role"] == "assistant"
    ended = choice["finish_reason"]
    assert ended in ("stop", "length", "tool_calls")
    assert ended != "tool_calls" or choice["calls"]
    for call in choice["calls"]:
        assert call["id"].startswith("call_")
        assert call["type"] == "function"
        assert call["function"]["name"] in [each["function"]["name"] for each in body["tools"]]
        if ended != "length":
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
    completion, read = ask(body)
    assert read.stream == body.get("stream", False)
    if read.stream:
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
