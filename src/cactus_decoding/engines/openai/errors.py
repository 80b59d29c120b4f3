"""Errors in the JSON of OpenAI's API, with the codes that clients look for."""

from __future__ import annotations

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


def error_body(message: str, kind: str = INVALID, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": " ".join(message.split()), "type": kind, "param": None, "code": code}}
