"""From the JSON of an OpenAI-compatible request to the arguments of a completion: every mistake is a sentence."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llama_cpp import LlamaGrammar

from cactus_decoding.arguments.knobs import Parameter, parameters
from cactus_decoding.arguments.values import check_integer, check_number, shown, suggestion
from cactus_decoding.generation.request import Request
from cactus_decoding.integrations.common.keys import KEYS, LIMITS, RULE_KEY, read_keys
from cactus_decoding.rules import parse_rule
from cactus_decoding.sampling.settings import SamplingSettings

_MAX_SEED = 2**32 - 2
_SAMPLING = parameters(SamplingSettings)


class UnknownModelError(ValueError):
    """Another model than the one that is served."""


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        chat: whether it is a conversation.
        stream: whether the answer is to come bit by bit.
        usage: whether the tokens are to be counted at the end of a stream.
        arguments: of `CactusLlama.create_completion` or `CactusLlama.create_chat_completion`.
    """

    chat: bool
    stream: bool
    usage: bool
    arguments: dict[str, Any]


def read_completion(body: Mapping[str, Any], model: str, usual: Mapping[str, Any], *, chat: bool) -> Asked:
    """Check a request; null is as good as absent.

    Sampling that is not asked for is OpenAI's and vLLM's: temperature 1 and no cuts, not llama-cpp-python's.

    Args:
        body: its JSON object.
        model: what is served.
        usual: settings of requests that say nothing, by the names of `Request.from_dict`.
        chat: whether it is a conversation.

    Raises:
        TypeError: for a value of the wrong type.
        UnknownModelError: for another model.
        ValueError: for an unknown name, or a value that is out of range or not served.

    Example:
        >>> asked = read_completion({"prompt": "Hi", "acceptance_rule": "cactus:delta=1"}, "m", {}, chat=False)
        >>> asked.arguments["rule"], asked.arguments["temperature"]
        ('cactus:delta=1', 1.0)
    """
    given = {name: value for name, value in body.items() if value is not None}
    readers = _READERS | (_CHAT if chat else _COMPLETION)
    if unknown := [name for name in given if name not in readers and name not in _NOT_SERVED]:
        raise ValueError(
            f"a request has no {unknown[0]!r}{suggestion(unknown[0], readers)}; known are {', '.join(readers)}"
        )
    if refused := [name for name in given if name in _NOT_SERVED and name not in readers]:
        raise ValueError(f"{refused[0]} is not served: {_NOT_SERVED[refused[0]]}")
    asked = given.get("model", model)
    if asked != model:
        raise UnknownModelError(f"this server has the model {model!r}, but not {shown(asked)}")
    values = {name: readers[name](name, value) for name, value in given.items()}
    needed = "messages" if chat else "prompt"
    if needed not in values:
        raise ValueError(f"a request must have {needed}")
    settings = _settings(values, usual)
    stream, options = values.pop("stream", False), values.pop("stream_options", {})
    for name in _ONLY_CHECKED:
        values.pop(name, None)
    if "max_completion_tokens" in values:
        values["max_tokens"] = values.pop("max_completion_tokens")
    if "grammar" in values:
        values["grammar"] = LlamaGrammar.from_string(values["grammar"], verbose=False)
    values = {each.name: each.default for each in _SAMPLING} | values | settings
    values.setdefault("seed", secrets.randbelow(_MAX_SEED))
    return Asked(chat, stream, options.get("include_usage", False), values | {"stream": stream})


def _settings(values: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Take our settings out of a request's values, and return them as arguments of a completion."""
    settings = read_keys({name: values.pop(name) for name in KEYS if name in values}, usual)
    if "rule" in settings:
        parse_rule(settings["rule"], importing=False)  # no request runs a module's code
    # combined as the call will combine them
    greedy = values.get("temperature", 1.0) == 0
    Request.from_dict({**usual, **settings, "temperature": 0.0 if greedy else 1.0})
    return settings


def _as_is(name: str, value: Any) -> Any:
    return value


def _number(low: float, high: float, **more: bool) -> Callable[[str, Any], float]:
    return lambda name, value: float(check_number(name, value, low, high, **more))


def _knob(parameter: Parameter) -> Callable[[str, Any], Any]:
    def read(name: str, value: Any) -> Any:
        checked: Any = parameter.check(value, name)
        return parameter.kind(checked)

    return read


def _integer(low: int, high: int | None = None) -> Callable[[str, Any], int]:
    return lambda name, value: check_integer(name, value, low, high)


def _kind(kind: type | tuple[type, ...], said: str) -> Callable[[str, Any], Any]:
    def read(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {said}, but is {shown(value)}")
        return value

    return read


_text, _flag = _kind(str, "a text"), _kind(bool, "true or false")
_object, _list = _kind(dict, "an object"), _kind(list, "a list")


def _one(name: str, value: Any) -> int:
    if value != 1:
        raise ValueError(f"{name} must be 1, but is {shown(value)}: this server gives one answer to a request")
    return 1


def _stop(name: str, value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) and each for each in strings):
        raise TypeError(f"stop must be a text or a list of texts that are not empty, but is {shown(value)}")
    return strings


def _prompt(name: str, value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        (value,) = value
    if isinstance(value, str) and value:
        return _encodable(value)
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return value
    raise TypeError(f"prompt must be one text, or one list of tokens, and not empty, but is {shown(value)}")


def _messages(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise TypeError(f"messages must be a list of objects that is not empty, but is {shown(value)}")
    return [_message(each) for each in value]


def _message(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise TypeError(f"a message must be an object with a role, but is {shown(value)}")
    content = value.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise ValueError("a message's content must be text: this server reads neither images nor sounds")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str | None):
        raise TypeError(f"a message's content must be text, but is {shown(content)}")
    return value | ({} if content is None else {"content": _encodable(content)})


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can spell and which are no text."""
    return text.encode(errors="replace").decode()


def _stream_options(name: str, value: Any) -> dict[str, bool]:
    if not isinstance(value, dict) or not all(key == "include_usage" and type(on) is bool for key, on in value.items()):
        raise ValueError(f"stream_options may hold include_usage, true or false, but is {shown(value)}")
    return value


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "model": _text,
    "max_tokens": _integer(1),
    **{each.name: _knob(each) for each in _SAMPLING},
    "top_k": _integer(-1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repeat_penalty": _number(0, math.inf, low_open=True, high_open=True),
    "logit_bias": _object,
    "stop": _stop,
    "seed": _integer(0, _MAX_SEED),
    "stream": _flag,
    "stream_options": _stream_options,
    "grammar": _text,
    "n": _one,
    "user": _text,
    **dict.fromkeys((name for name in KEYS if name != "importance"), _as_is),
    RULE_KEY: _text,
}
"""What every request may ask for, and what checks it; our own settings are checked together, by `Request`."""
_COMPLETION: dict[str, Callable[[str, Any], Any]] = {"prompt": _prompt, "echo": _flag, "best_of": _one}
_CHAT: dict[str, Callable[[str, Any], Any]] = {
    "messages": _messages,
    "max_completion_tokens": _integer(1),
    "tools": _list,
    "tool_choice": _kind((str, dict), "a text or an object"),
    "functions": _list,
    "function_call": _kind((str, dict), "a text or an object"),
    "response_format": _object,
}
_ONLY_CHECKED = ("model", "n", "user", "best_of")
_NOT_SERVED = {
    "logprobs": "the rows of all tokens would have to be kept (`CactusLlama` has them, with logits_all=True)",
    "top_logprobs": "the rows of all tokens would have to be kept (`CactusLlama` has them, with logits_all=True)",
    "suffix": "models are not asked to fill gaps",
    "importance": f"a request may read no file; the server is started with one, and a request may set {LIMITS}",
    "typical_p": "`CactusLlama` does not do it",
    "mirostat_mode": "`CactusLlama` does not do it",
}
