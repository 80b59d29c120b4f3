"""What checks the values of a request's fields: ``(name, value) -> value``, or a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cactus_decoding.core.mistakes import check_integer, check_number, shown

Reader = Callable[[str, Any], Any]
MAX_PROMPTS = 32
_ROLES = {"developer": "system"}
"""Roles that chat templates do not know, and what they call them."""


def as_is(name: str, value: Any) -> Any:
    """Return what somebody else checks."""
    return value


def number(low: float, high: float, **more: bool) -> Reader:
    """Return what takes a number in a range."""
    return lambda name, value: float(check_number(name, value, low, high, **more))


def integer(low: int, high: int | None = None) -> Reader:
    """Return what takes an integer in a range."""
    return lambda name, value: check_integer(name, value, low, high)


def kind(kinds: type | tuple[type, ...], said: str) -> Reader:
    """Return what takes values of some types."""

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(f"{name} must be {said}, but is {shown(value)}")
        return value

    return read


text, flag = kind(str, "a text"), kind(bool, "true or false")
an_object, _list = kind(dict, "an object"), kind(list, "a list")


def only(allowed: object, why: str) -> Reader:
    """Return what takes one value."""

    def read(name: str, value: Any) -> Any:
        if value != allowed:
            raise ValueError(f"{name} of {shown(value)} is not served: {why}")
        return value

    return read


def objects(name: str, value: Any) -> list[dict[str, Any]]:
    """Return a list of objects."""
    return [an_object(f"each of {name}", each) for each in _list(name, value)]


def stop(name: str, value: Any) -> list[str]:
    """Return stop strings."""
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) and each for each in strings):
        raise TypeError(f"stop must be a text or a list of texts that are not empty, but is {shown(value)}")
    return strings


def prompts(name: str, value: Any) -> list[str | list[int]]:
    """Return texts, or tokens of each; one may come without a list around it."""
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    given = value if several else [value]
    if len(given) > MAX_PROMPTS:
        raise ValueError(f"prompt must be at most {MAX_PROMPTS} prompts, but is {len(given)}")
    return [_prompt(each) for each in given]


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, str) and value:
        return encodable(value)
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return value
    raise TypeError(f"prompt must be a text, its tokens, or a list of these, and not empty, but is {shown(value)}")


def messages(name: str, value: Any) -> list[dict[str, Any]]:
    """Return a conversation as chat templates read it."""
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
    message = value | {"role": _ROLES.get(value["role"], value["role"])}
    message["content"] = encodable(content or "")  # some templates add it to a text, also beside calls
    if calls := value.get("tool_calls"):
        message["tool_calls"] = [_call(each) for each in objects("tool_calls", calls)]
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object, which templates write as JSON; clients send them as a text."""
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        with suppress(ValueError):  # or else the text
            return call | {"function": function | {"arguments": json.loads(function["arguments"])}}
    return call


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can spell and which are no text."""
    return text.encode(errors="replace").decode()


def stream_options(name: str, value: Any) -> dict[str, bool]:
    """Return what is to come with a stream: of the names that clients send, the first says anything here."""
    known = ("include_usage", "include_obfuscation", "continuous_usage_stats")
    if not isinstance(value, dict) or not all(key in known and type(on) is bool for key, on in value.items()):
        raise ValueError(f"stream_options may hold {', '.join(known)}, true or false, but is {shown(value)}")
    return value
