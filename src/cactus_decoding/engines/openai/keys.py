"""What requests to servers ask for by keys of their own, and what they may not bring along."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

from cactus_decoding.core.knobs import settings_of, switch
from cactus_decoding.core.policy.importance_limit import ImportanceLimit
from cactus_decoding.core.policy.protection import PATTERNS, Protection, named_sets
from cactus_decoding.core.policy.relaxation import POLICY_SETTINGS
from cactus_decoding.core.values import check_number, shown

RULE_KEY, BUDGET_KEY = "acceptance_rule", "budget"
NOT_HERE = "importance_scale"
"""A setting for the response of our own loop only: a rule has one knob for a whole batch."""
POLICY_KEYS = tuple(name for name in POLICY_SETTINGS if name != NOT_HERE)
"""What a request says of its relaxation policy: the settings' own names."""
KEYS = (RULE_KEY, BUDGET_KEY, *POLICY_KEYS)
LIMITS = ", ".join(name for name in settings_of(ImportanceLimit) if name in POLICY_KEYS and name != "importance")
"""What a request may say of importance, whose file is the server's."""
THINKING = "thinking"
"""As ``relax_within``: between the tokens that the server's reasoning parser knows."""
Marks = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens that open a span, and those that close it."""

NONE = "none"
"""Takes a server's ``protect``, ``relax_within`` or ``importance`` back; vLLM refuses JSON's null."""
MAX_MARK = 64
"""Characters or tokens of a mark in a request: it is looked for behind every token."""


def read_keys(
    asked: Mapping[str, Any], defaults: Mapping[str, Any], *, thinking: Marks | None = None, any_pattern: bool = False
) -> dict[str, Any]:
    """Return the settings that a request's keys ask for, among others; a value of None is as good as absent.

    Whoever starts the server may give any regular expression to protect, marks of any length and any file of importance
    (``any_pattern``): it is busy with the first two for every token and reads the file. ``thinking`` are the marks
    between which the server's model thinks, where a reasoning parser says.

    Raises `TypeError` for a rule that is no text, or a budget that is no number; `ValueError` for a value out of range,
    a pattern that is not named, marks that nobody knows, or another file.

    Example:
        >>> settings = read_keys({"acceptance_rule": "lossless", "protect": "none", "n": 2}, {"protect": "digits"})
        >>> settings["rule"], settings["protect"], "n" in settings
        ('lossless', None, False)
    """
    given = {key: asked[key] for key in KEYS if asked.get(key) is not None}
    settings: dict[str, Any] = {}
    if RULE_KEY in given:
        settings["rule"] = given.pop(RULE_KEY)
        if not isinstance(settings["rule"], str):
            raise TypeError(f"{RULE_KEY} must be a string such as 'cactus:delta=1.0', but is {shown(settings['rule'])}")
    if BUDGET_KEY in given:
        settings["budget"] = check_number(BUDGET_KEY, given.pop(BUDGET_KEY), 0, math.inf)
    if not any_pattern:
        _check_harmless(given, defaults)
    settings |= given
    for part in (Protection, ImportanceLimit):
        if given.get(key := switch(part)) == NONE:  # what else is said of it will be refused: it is that of nothing
            settings |= {name: given.get(name) for name in settings_of(part) if name in POLICY_KEYS} | {key: None}
    pattern = settings.get("protect")
    if not any_pattern and isinstance(pattern, str) and pattern != defaults.get("protect"):
        settings["protect"] = named_protection(pattern)
    if given.get("relax_within") == NONE:
        settings["relax_within"] = None
    elif given.get("relax_within") == THINKING:
        if thinking is None:
            raise ValueError(
                f"relax_within is {THINKING!r}, but the server has no --reasoning-parser that knows the tokens: "
                "give two marks, or their token ids"
            )
        settings["relax_within"] = thinking
    return settings


def _check_harmless(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a file that is not the server's, or marks that are too long."""
    file = given.get("importance")
    if file not in (None, NONE, defaults.get("importance")):
        raise ValueError(
            f"importance is a file that the server is started with (--additional-config), or {NONE}, but is "
            f"{shown(file)}: a request may set {LIMITS} only"
        )
    check_marks(given.get("relax_within"))


def named_protection(pattern: str) -> str:
    """Return a pattern of named sets, each once and in their order; raise `ValueError` for any other.

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
