"""What requests to servers may ask for by this package's own keys, and how errors are told in OpenAI's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cactus_decoding.core.checks import PromptTooLongError
from cactus_decoding.core.declared import switch
from cactus_decoding.core.request import SETTINGS

OF_ENGINES = {"sampling", "answer"}  # groups with keys of the engine's own: temperature, seed and so on
_ASKED = {
    each.key: each
    for each in SETTINGS.values()
    if each.setting.from_clients and not OF_ENGINES.intersection(each.groups)
}
KEYS = tuple(_ASKED)  # the keys of requests and of servers' own settings
RULE_KEY, BUDGET_KEY = SETTINGS["rule"].key, SETTINGS["budget_nats"].key
POLICY_KEYS = tuple(key for key in KEYS if key not in (RULE_KEY, BUDGET_KEY))  # the relaxation policy's
# settings that only the server has
NOT_FROM_CLIENTS = tuple(name for name, each in SETTINGS.items() if not each.setting.from_clients and name not in KEYS)
ALLOWED = f"a request may set {', '.join(_ASKED)}"  # the message if a request asks for one of them
THINKING = "thinking"  # as ``relax_within``: between the tokens that the server's reasoning parser knows
Marks = tuple[tuple[int, ...], tuple[int, ...]]  # the tokens that open a span, and those that close it

NONE = "none"  # turns off a server's ``protect`` or ``relax_within``; vLLM refuses JSON's null


def read_keys(
    asked: Mapping[str, Any], defaults: Mapping[str, Any], *, thinking: Marks | None = None, any_pattern: bool = False
) -> dict[str, Any]:
    """Return the settings that a request's keys ask for; a value of None is the same as leaving a key out.

    Clients may send what the settings' fields allow (``from_clients``). Whoever starts the server may give any pattern
    (``any_pattern``). ``thinking`` are the marks between which the server's model thinks, if a reasoning parser knows
    them. What a value may be is checked where a request is made of the settings (``called`` of `Request.from_dict`).

    Example:
        >>> settings = read_keys({"acceptance_rule": "lossless", "protect": "none", "n": 2}, {"protect": "digits"})
        >>> settings["rule"], settings["protect"], "n" in settings
        ('lossless', None, False)
    """
    given = {key: asked[key] for key in KEYS if asked.get(key) is not None}
    settings: dict[str, Any] = {}
    for key, value in given.items():
        declared = _ASKED[key]
        name = declared.flat
        if value == NONE and key == switch(declared.part):
            # what else is said of it will be refused: it is that of nothing
            settings |= {each: given.get(each) for each in POLICY_KEYS if SETTINGS[each].part is declared.part}
            value = None
        elif value == NONE and key == "relax_within":
            value = None
        elif value == THINKING and key == "relax_within":
            if thinking is None:
                raise ValueError(
                    f"relax_within is {THINKING!r}, but the server knows no tokens around a thinking part (of vLLM's, "
                    "a --reasoning-parser does): give two marks, or their token ids"
                )
            value = thinking
        elif not any_pattern and value != defaults.get(name):
            value = declared.from_client(value, key)
        settings[name] = value
    return settings


INVALID = "invalid_request_error"


class UnknownFieldError(ValueError):
    """A request with a field that is not known, or not served."""


class UnknownModelError(ValueError):
    """A question for a model that is not here."""


_CODES: dict[type[Exception], str] = {
    PromptTooLongError: "context_length_exceeded",
    UnknownFieldError: "unknown_parameter",
    UnknownModelError: "model_not_found",
    TypeError: "invalid_type",
    ValueError: "invalid_value",
}


def code_of(error: Exception) -> str | None:
    """Return OpenAI's code of an error.

    Example:
        >>> code_of(PromptTooLongError("…")), code_of(ValueError("…")), code_of(KeyError("…"))
        ('context_length_exceeded', 'invalid_value', None)
    """
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


@contextmanager
def errors_about(field: str) -> Iterator[None]:
    """Note which field of a request an error is about, for `param_of`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        vars(error).setdefault("param", field)
        raise


def param_of(error: Exception) -> str | None:
    return vars(error).get("param") or None


def error_body(message: str, kind: str = INVALID, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": " ".join(message.split()), "type": kind, "param": param, "code": code}}
