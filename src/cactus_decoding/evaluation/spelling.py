"""The text spelling of tasks: a kind, then ``:`` and comma-separated ``parameter=value`` pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def parse_spelling(text: str, kinds: Mapping[str, Callable[..., Any]], what: str) -> tuple[str, dict[str, str]]:
    """Return the kind that a text names and its parameters, which are the keyword-only arguments of ``kinds[kind]``.

    A ``pattern`` is a regular expression, which may contain commas: it comes last and takes the rest of the text.

    Raises:
        ValueError: for an unknown kind or parameter, or one that is missing or given twice.

    Example:
        >>> def sums(limit, *, path, pattern=""): ...
        >>> parse_spelling("sums:path=a.jsonl,pattern=[0-9]{1,3}", {"sums": sums}, "task")
        ('sums', {'path': 'a.jsonl', 'pattern': '[0-9]{1,3}'})
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in kinds:
        raise ValueError(f"unknown {what} {kind!r} in {text!r}; known are {', '.join(kinds)}")
    arguments = inspect.signature(kinds[kind]).parameters.values()
    allowed = {a.name: a.default for a in arguments if a.kind is a.KEYWORD_ONLY}
    values: dict[str, str] = {}
    while rest:
        separator = "" if rest.startswith("pattern=") else ","
        part, _, rest = rest.partition(separator) if separator else (rest, "", "")
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in allowed:
            known = ", ".join(allowed) or "none"
            raise ValueError(f"{part!r} in {text!r} is not parameter=value; parameters of {kind} are: {known}")
        if key in values:
            raise ValueError(f"{key} is given twice in {text!r}")
        values[key] = value.strip() if key != "pattern" else value
    missing = [name for name, default in allowed.items() if default is inspect.Parameter.empty and name not in values]
    if missing:
        raise ValueError(f"{text!r} lacks {', '.join(missing)}; write for example '{kind}:{missing[0]}=…'")
    return kind, values
