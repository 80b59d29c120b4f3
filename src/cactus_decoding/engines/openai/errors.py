"""Errors in the JSON of OpenAI's API, with the codes that clients look for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cactus_decoding.core.mistakes import PromptTooLongError

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
def about(field: str) -> Iterator[None]:
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
