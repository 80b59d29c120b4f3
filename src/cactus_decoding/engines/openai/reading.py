"""JSON that clients send: what is read of it, and what no honest client sends."""

from __future__ import annotations

import json
from typing import Any

MAX_NESTING = 256  # objects and lists within each other: schemas may have 200, and stand within a few more


class NoJSONError(ValueError):
    """A text that is no JSON."""


def parse_body(text: str | bytes, what: str) -> Any:
    """Return a JSON value; raise `ValueError` for other texts, too many levels and half of a surrogate pair.

    So nothing that comes after is too deep for Python's recursion, and every text can be written as UTF-8.

    Example:
        >>> parse_body('{"a": [1]}', "a request")
        {'a': [1]}
        >>> parse_body("[" * 300 + "]" * 300, "a request")
        Traceback (most recent call last):
        ValueError: a request may nest 256 objects and lists, but this one has more
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise NoJSONError(f"{what} must be JSON, but this one is not: {error}") from None
    level = [value]
    for _ in range(MAX_NESTING):
        within = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [part for parts in within for part in parts]
    if any(isinstance(each, dict | list) for each in level):
        raise _too_deep(what)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ValueError(f"{what} must be text in Unicode, but this one has half of a surrogate pair, {half}") from None
    return value


def _too_deep(what: str) -> ValueError:
    return ValueError(f"{what} may nest {MAX_NESTING} objects and lists, but this one has more")
