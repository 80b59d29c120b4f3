"""Checks of what clients read in answers; each says in a few words what it found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import openai


def text(choice: Any, content: str | None, usage: Any = None, most: int = 0) -> str:
    """Check a choice's text and end; say how it ended."""
    assert isinstance(content, str), content
    assert content, choice
    assert choice.finish_reason in ("stop", "length"), choice
    return f"{len(content)} characters, {choice.finish_reason}" + (f", {counted(usage, most)}" if usage else "")


def counted(usage: Any, most: int) -> str:
    """Check a count of tokens."""
    assert 0 < usage.completion_tokens <= most, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    return f"{usage.prompt_tokens} and {usage.completion_tokens} tokens"


def logprobs(content: Sequence[Any], said: str, top: int) -> str:
    """Check log-probabilities of a conversation's answer."""
    tokens = [each if isinstance(each, dict) else each.model_dump() for each in content]
    assert b"".join(bytes(each["bytes"]) for each in tokens).decode() == said, tokens
    assert all(each["logprob"] <= 0 and len(each["top_logprobs"]) == top for each in tokens), tokens
    ranked = [[other["logprob"] for other in each["top_logprobs"]] for each in tokens]
    assert ranked == [sorted(each, reverse=True) for each in ranked]
    return f"{len(tokens)} log-probabilities of 0 at most" + (f", each with {top} others" if top else "")


def call(name: str, given: dict[str, Any]) -> str:
    """Check a call of `add`."""
    assert name == "add", name
    assert {key: type(value) for key, value in given.items()} == {"a": int, "b": int}, given
    return f"add({json.dumps(given)})"


def calls(choice: Any) -> str:
    """Check a message's first call; there may be others, the last of them cut."""
    made, *others = choice.message.tool_calls
    assert (made.type, made.id[:5]) == ("function", "call_"), choice
    assert choice.finish_reason == "tool_calls" or (others and choice.finish_reason == "length"), choice
    return call(made.function.name, json.loads(made.function.arguments))


def streamed(chunks: Sequence[Any], most: int, *, told: bool = False) -> str:
    """Check a conversation's stream."""
    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    said = "".join(part.delta.content or "" for part in parts)
    assert parts[0].delta.role == "assistant"
    assert [part.finish_reason is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    found = f"{len(parts)} parts, {text(parts[-1], said)}, then {counted(chunks[-1].usage, most)}"
    if told:
        found += ", " + logprobs([each for p in parts if p.logprobs for each in p.logprobs.content], said, 0)
    return found


def refused(kind: type[openai.APIStatusError], ask: Callable[[], Any], said: str) -> str:
    """Check that a request is refused, with what is said of it."""
    try:
        ask()
    except kind as error:
        message = error.body["message"] if isinstance(error.body, dict) else str(error)
        assert said in message, message
        return f"{error.status_code}: {message}"
    raise AssertionError("not refused")
