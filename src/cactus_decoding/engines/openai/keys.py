"""What requests to servers ask for by keys of their own, and what they may not bring along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from cactus_decoding.core.declared import switch
from cactus_decoding.core.mistakes import shown
from cactus_decoding.core.request import SETTINGS

_OF_ENGINES = {"sampling", "answer"}
"""Groups of settings that requests spell as the engine's own: temperature, seed and so on."""
_ASKED = {
    each.key: each
    for each in SETTINGS.values()
    if each.setting.from_clients and not _OF_ENGINES.intersection(each.groups)
}
FILE_KEY = "importance"
"""A file, which the server is started with: a request may only take it back."""
KEYS = (*_ASKED, FILE_KEY)
"""What requests and servers' own settings are asked for by."""
RULE_KEY, BUDGET_KEY = SETTINGS["rule"].key, SETTINGS["budget_nats"].key
POLICY_KEYS = tuple(key for key in KEYS if key not in (RULE_KEY, BUDGET_KEY))
"""What a request says of its relaxation policy: the settings' own names."""
NOT_FROM_CLIENTS = tuple(name for name, each in SETTINGS.items() if not each.setting.from_clients and name not in KEYS)
"""Settings that are the server's alone."""
ALLOWED = f"a request may set {', '.join(_ASKED)}"
"""What is said where one of them is asked for all the same."""
LIMITS = ", ".join(key for key, each in _ASKED.items() if FILE_KEY in each.groups)
"""What a request may say of importance, whose file is the server's."""
THINKING = "thinking"
"""As ``relax_within``: between the tokens that the server's reasoning parser knows."""
Marks = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens that open a span, and those that close it."""

NONE = "none"
"""Takes a server's ``protect``, ``relax_within`` or ``importance`` back; vLLM refuses JSON's null."""


def read_keys(
    asked: Mapping[str, Any], defaults: Mapping[str, Any], *, thinking: Marks | None = None, any_pattern: bool = False
) -> dict[str, Any]:
    """Return the settings that a request's keys ask for, among others; a value of None is as good as absent.

    Clients may send what the settings' fields say (``from_clients``). Whoever starts the server may give anything
    (``any_pattern``). ``thinking`` are the marks between which the server's model thinks, where a reasoning parser
    says.

    Raises `TypeError` for a rule that is no text, or a budget that is no number; `ValueError` for a value out of range,
    or one that clients may not send: a rule whose module would be imported, a pattern that is not named, marks that
    nobody knows or that are too long, or another file.

    Example:
        >>> settings = read_keys({"acceptance_rule": "lossless", "protect": "none", "n": 2}, {"protect": "digits"})
        >>> settings["rule"], settings["protect"], "n" in settings
        ('lossless', None, False)
    """
    given = {key: asked[key] for key in KEYS if asked.get(key) is not None}
    settings: dict[str, Any] = {}
    for key, value in given.items():
        declared = SETTINGS[FILE_KEY] if key == FILE_KEY else _ASKED[key]
        name = BUDGET_KEY if key == BUDGET_KEY else declared.flat
        if value == NONE and key == switch(declared.part):
            # what else is said of it will be refused: it is that of nothing
            settings |= {each: given.get(each) for each in POLICY_KEYS if SETTINGS[each].part is declared.part}
            value = None
        elif value == NONE and key == "relax_within":
            value = None
        elif value == THINKING and key == "relax_within":
            value = _marks(thinking)
        elif not any_pattern and value != defaults.get(name):
            value = _own_file(value) if key == FILE_KEY else declared.from_client(value, key)
        settings[name] = value
    return settings


def _marks(thinking: Marks | None) -> Marks:
    if thinking is None:
        raise ValueError(
            f"relax_within is {THINKING!r}, but the server has no --reasoning-parser that knows the tokens: give two "
            "marks, or their token ids"
        )
    return thinking


def _own_file(given: object) -> NoReturn:
    raise ValueError(
        f"importance is a file that the server is started with (--additional-config), or {NONE}, but is "
        f"{shown(given)}: a request may set {LIMITS} only"
    )
