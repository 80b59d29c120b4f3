"""What a request to a server may not bring along: patterns and marks that the server would be busy with for long."""

from __future__ import annotations

from collections.abc import Sized

from cactus_decoding.arguments.checks import shown
from cactus_decoding.budgets.protection import PATTERNS, named_sets

NONE = "none"
"""Takes a server's ``protect``, ``relax_within`` or ``importance`` back; vLLM refuses JSON's null."""
MAX_MARK = 64
"""Characters or tokens of a mark in a request: it is looked for behind every token."""


def named_protection(pattern: str) -> str:
    """Return a pattern of named sets, each once and in their order.

    Raises:
        ValueError: for any other.

    Example:
        >>> named_protection("json | digits")
        'digits|json'
    """
    named = named_sets(pattern)
    if named is None:
        raise ValueError(
            f"protect must be one of {', '.join(PATTERNS)}, several of them joined by '|', or {NONE}, but is "
            f"{shown(pattern)}: a request may bring no regular expression of its own, which could keep the server busy "
            "for ever; the server's own setting may be one"
        )
    return named


def check_marks(marks: object) -> None:
    """Raise `ValueError` if a mark of ``relax_within`` is too long; what is no mark at all is looked at elsewhere.

    Example:
        >>> check_marks(["<think>", "</think>"])
        >>> check_marks([[7] * 65, [8]])
        Traceback (most recent call last):
        ValueError: relax_within must be two marks of at most 64 characters or tokens, but is [[7, 7, ...
    """
    if isinstance(marks, list | tuple) and any(isinstance(mark, Sized) and len(mark) > MAX_MARK for mark in marks):
        raise ValueError(
            f"relax_within must be two marks of at most {MAX_MARK} characters or tokens, but is {shown(marks)}"
        )
