"""From the JSON of an OpenAI-compatible request to what a completion is asked for: every mistake is a sentence."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cactus_decoding.core.constraints.grammar import Grammar
from cactus_decoding.core.declared import Declared, fields_of
from cactus_decoding.core.mistakes import shown, suggestion
from cactus_decoding.core.request import Request
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.llama_cpp.server import fields as read
from cactus_decoding.engines.llama_cpp.server.tools import Tools, grammar_of
from cactus_decoding.engines.openai.counters import REPORT_KEY
from cactus_decoding.engines.openai.keys import (
    ALLOWED,
    FILE_KEY,
    KEYS,
    LIMITS,
    NOT_FROM_CLIENTS,
    RULE_KEY,
    read_keys,
)

MAX_SEED = 2**32 - 2
MAX_CHOICES, MAX_LOGPROBS = 16, 20
_SAMPLING = fields_of(SamplingParams)
_COMPLETION_TOKENS = 16
"""OpenAI's own limit of a completion, where a request says nothing; conversations have none."""


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        prompts: texts or their tokens, each to be completed; none for a conversation.
        messages: of a conversation.
        settings: by the names of `Request.from_dict`, those of sampling left out.
        sampling: by the names of `SamplingParams`.
        penalties: ``repeat``, ``frequency`` and ``presence``, in this order.
        logit_bias: what to add to logits, by token.
        grammar: of the answer; None where anything may be written.
        tools: that the answer may call.
        template: further names for the chat template.
        max_tokens: of each choice; None for as many as there is room for.
        stop: strings that end a choice.
        seed: of a prompt's first choice; the next ones have the next ones.
        n: how many choices of each prompt.
        logprobs: how many of the likeliest tokens to name at each place; None for none of that.
        echo: whether the prompt is to stand before each choice.
        stream: whether the answer is to come bit by bit.
        usage: whether the tokens are to be counted at the end of a stream.
        report: whether to say what the rule did.
    """

    prompts: list[str | list[int]]
    messages: list[dict[str, Any]]
    settings: dict[str, Any]
    sampling: dict[str, Any]
    penalties: tuple[float, ...]
    logit_bias: dict[str, Any]
    grammar: Grammar | None
    tools: Tools | None
    template: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1
    logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    usage: bool = False
    report: bool = False

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return not self.prompts


def read_completion(body: Mapping[str, Any], defaults: Mapping[str, Any], *, chat: bool) -> Asked:
    """Check a request; null is as good as absent.

    Sampling that is not asked for is OpenAI's and vLLM's: temperature 1 and no cuts, not llama-cpp-python's. Any name
    of a model will do, because one is served.

    Args:
        body: its JSON object.
        defaults: settings of requests that say nothing, by the names of `Request.from_dict`.
        chat: whether it is a conversation.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for an unknown name, or a value that is out of range or not served.

    Example:
        >>> asked = read_completion({"prompt": "Hi", "acceptance_rule": "cactus:delta=1"}, {}, chat=False)
        >>> asked.settings["rule"], asked.sampling["temperature"]
        ('cactus:delta=1', 1.0)
    """
    given = {name: value for name, value in body.items() if value is not None}
    readers = _READERS | (_CHAT if chat else _COMPLETION)
    _check_names(given, readers)
    values = {name: readers[name](name, value) for name, value in given.items()}
    needed = "messages" if chat else "prompt"
    if needed not in values:
        raise ValueError(f"a request must have {needed}")
    sampling = {each.name: values.get(each.name, each.default) for each in _SAMPLING}
    settings = _settings(values, sampling, defaults)
    tools = Tools.of(values)
    logprobs = _logprobs(values, chat=chat)
    if logprobs is not None and values.get("echo"):
        raise ValueError("echo with logprobs is not served: the rows of prompts are not kept")
    limit = values.get("max_completion_tokens", values.get("max_tokens", None if chat else _COMPLETION_TOKENS))
    return Asked(
        prompts=[] if chat else values["prompt"],
        messages=values.get("messages", []),
        settings=settings,
        sampling=sampling,
        penalties=tuple(values.get(name, default) for name, default in _PENALTIES.items()),
        logit_bias=values.get("logit_bias", {}),
        grammar=grammar_of(values, tools),
        tools=tools,
        template=values.get("chat_template_kwargs", {}),
        max_tokens=limit,
        logprobs=logprobs,
        stop=tuple(values.get("stop", ())),
        seed=values.get("seed", secrets.randbelow(MAX_SEED)),
        usage=values.get("stream_options", {}).get("include_usage", False),
        report=values.get(REPORT_KEY, False),
        **{name: values[name] for name in ("n", "echo", "stream") if name in values},
    )


def _check_names(given: Mapping[str, Any], readers: Mapping[str, read.Reader]) -> None:
    if unknown := [name for name in given if name not in readers and name not in _NOT_SERVED]:
        raise ValueError(
            f"a request has no {unknown[0]!r}{suggestion(unknown[0], readers)}; known are {', '.join(readers)}"
        )
    if refused := [name for name in given if name in _NOT_SERVED and name not in readers]:
        raise ValueError(f"{refused[0]} is not served: {_NOT_SERVED[refused[0]]}")


def _settings(values: dict[str, Any], sampling: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return our settings among a request's values, as those of a `Request`."""
    settings = read_keys({name: values[name] for name in KEYS if name in values}, defaults)
    Request.from_dict({**defaults, **settings, **sampling})  # combined as the answer will combine them
    return settings


def _logprobs(values: Mapping[str, Any], *, chat: bool) -> int | None:
    """Return how many of the likeliest tokens to name: conversations ask for it by two keys, completions by one."""
    if not chat:
        return values.get("logprobs")
    top = values.get("top_logprobs")
    if top and not values.get("logprobs"):
        raise ValueError(f"top_logprobs needs logprobs to be true, but is {shown(top)}")
    return (top or 0) if values.get("logprobs") else None


def _declared(declared: Declared) -> read.Reader:
    return lambda name, value: declared.from_client(value, name)


_PENALTIES = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_READERS: dict[str, read.Reader] = {
    "model": read.text,
    "max_tokens": read.integer(1),
    **{each.name: _declared(each) for each in _SAMPLING},
    "top_k": lambda name, value: max(read.integer(-1)(name, value), 0),  # clients write -1 or 0 for all tokens
    "presence_penalty": read.number(-2, 2),
    "frequency_penalty": read.number(-2, 2),
    "repeat_penalty": read.number(0, math.inf, low_open=True, high_open=True),
    "logit_bias": read.an_object,
    "stop": read.stop,
    "seed": read.integer(0, MAX_SEED),
    "stream": read.flag,
    "stream_options": read.stream_options,
    "grammar": read.text,
    "guided_regex": read.text,
    "structured_outputs": read.an_object,
    "response_format": read.an_object,
    "n": read.integer(1, MAX_CHOICES),
    **dict.fromkeys(("user", "service_tier", "safety_identifier", "prompt_cache_key"), read.text),
    **dict.fromkeys(("store", "parallel_tool_calls"), read.flag),
    "metadata": read.an_object,
    **dict.fromkeys((name for name in KEYS if name != FILE_KEY), read.as_is),
    RULE_KEY: read.text,
    REPORT_KEY: read.flag,
}
"""What every request may ask for, and what checks it; our own settings are checked together, by `Request`."""
_COMPLETION: dict[str, read.Reader] = {
    "prompt": read.prompts,
    "echo": read.flag,
    "best_of": read.only(1, "the likeliest of several answers is not looked for"),
    "logprobs": read.integer(0, MAX_LOGPROBS),
}
_CHAT: dict[str, read.Reader] = {
    "messages": read.messages,
    "max_completion_tokens": read.integer(1),
    "logprobs": read.flag,
    "top_logprobs": read.integer(0, MAX_LOGPROBS),
    "tools": read.objects,
    "tool_choice": read.kind((str, dict), "a text or an object"),
    "functions": read.objects,
    "function_call": read.kind((str, dict), "a text or an object"),
    **dict.fromkeys(("chat_template_kwargs", "prediction"), read.an_object),
    "modalities": read.only(["text"], "answers are text"),
    **dict.fromkeys(("reasoning_effort", "verbosity", "prompt_cache_retention"), read.text),
}
_NOT_SERVED = {
    "best_of": "the likeliest of several answers is not looked for",
    "suffix": "models are not asked to fill gaps",
    **dict.fromkeys(NOT_FROM_CLIENTS, ALLOWED),
    FILE_KEY: f"a request may read no file; the server is started with one, and a request may set {LIMITS}",
    "typical_p": "the law that it samples from would not be known",
    "mirostat_mode": "the law that it samples from would not be known",
}
