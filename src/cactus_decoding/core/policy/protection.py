"""Protected tokens: positions at which the target is about to write one of them are judged losslessly."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, overload

from pydantic import BeforeValidator

from cactus_decoding.core.checks import short_repr, suggestion
from cactus_decoding.core.declared import Model, Setting

if TYPE_CHECKING:
    from torch import Tensor

    from cactus_decoding.core.policy.vocabulary import Vocabulary

# named sets of tokens, each a pattern that is searched for in a token's text
PATTERNS = {
    "digits": r"\d",
    "numbers_and_operators": r"\d|[-+*/=<>^%×÷±≤≥≠]",
    "json": r'[{}\[\]":,\\]|\b(?:true|false|null)\b|\d',
    "code": r"[(){}\[\]<>=;:+\-*/%&|^~!@#$\\.,'\"`_]|\n|^\s+$|\d",
    "negation": r"\b(?i:no|not|never|none|nobody|nothing|neither|nor|cannot|without)\b|n['’]t\b|^['’]t$",
}


def named_sets(pattern: str) -> str | None:
    """Return a pattern of named sets, each once and in their order; None for any other pattern.

    Servers accept only these from requests, as searching a vocabulary for a regular expression may never end.
    """
    asked = {name.strip() for name in pattern.split("|")}
    return "|".join(name for name in PATTERNS if name in asked) if asked <= set(PATTERNS) else None


def named_protection(pattern: object) -> object:
    """Return a client's pattern as `named_sets` does, or raise `ValueError`; other types are checked elsewhere."""
    if not isinstance(pattern, str):
        return pattern
    named = named_sets(pattern)
    if named is None:
        raise ValueError(
            f"protect must be one of {', '.join(PATTERNS)}, several of them joined by '|', or none, but is "
            f"{short_repr(pattern)}: a request may bring no regular expression of its own, which could keep the server "
            "busy for ever; the server's own setting may be one"
        )
    return named


def _expression(pattern: str) -> str:
    allowed = f"one of {', '.join(PATTERNS)} or a regular expression"
    if not isinstance(pattern, str):
        raise TypeError(f"protect must be a text, {allowed}, but is {short_repr(pattern)}")
    if not pattern.strip():
        raise ValueError(f"protect must be {allowed}, but is empty")
    for part in pattern.split("|"):
        close = suggestion(part, PATTERNS, cutoff=0.8)
        if close and part.strip() not in PATTERNS:  # which would silently protect next to nothing
            raise ValueError(
                f"protect has no set of tokens named {part.strip()!r}{close} (for the text itself write "
                f"'(?:{part.strip()})')"
            )
    try:
        re.compile(_regular_expression(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"protect must be {allowed}, but {short_repr(pattern)} is neither: {error}") from error
    return pattern


def _regular_expression(pattern: str) -> str:
    parts = pattern.split("|")
    return "|".join(f"(?:{PATTERNS[part.strip()]})" if part.strip() in PATTERNS else part for part in parts)


class Protection(Model):
    r"""Positions to judge losslessly, because the target may write a token there that must not change.

    A position is protected where the target's probabilities q put more than ``threshold`` on the tokens whose text
    matches:

    .. math:: \sum_{x\ \text{matches}} q(x) > \text{threshold}

    It depends on the target's probabilities only and never on the drafted token, so a protected rule still has its
    relaxed target, and every guarantee of the rule and of a budget holds. The text of a token is what it adds after
    another token, including its leading space. Control tokens, such as the end of a text, have none. The pattern is
    searched for in one token at a time, so a text that is spread over several tokens is not found. Byte-level tokens
    that hold a part of a character are an exception: such a token matches if any character that it can be a part of
    matches by itself, or is written in the pattern. So ``≠`` is protected at each of its tokens, and so are other
    characters that share them.

    Sources: design of this project; the idea that few tokens matter is that of AutoJudge (arXiv 2504.20039).
    """

    pattern: Annotated[
        str,
        BeforeValidator(_expression),
        Setting(
            "Judge losslessly where the target may write a token of this kind: "
            f"{', '.join(PATTERNS)}, several joined by '|', or a regular expression over a token's text.",
            flat="protect",
            metavar="PATTERN",
            from_clients=named_protection,
        ),
    ]
    threshold: Annotated[
        float,
        Setting(
            "The largest probability of such tokens at which a position may be relaxed.",
            ge=0,
            le=1,
            flat="protect_threshold",
            metavar="P",
            from_clients=True,
        ),
    ] = 0.01

    @property
    def regular_expression(self) -> str:
        return _regular_expression(self.pattern)

    def mask(self, vocabulary: Vocabulary) -> Tensor:
        """Return which tokens are protected, ``[vocabulary]``; raise `ValueError` for none, or all of them."""
        return _mask(self, vocabulary)


@lru_cache(maxsize=32)
def _mask(protection: Protection, vocabulary: Vocabulary) -> Tensor:
    import torch  # imported here, as requests are checked without it

    search = re.compile(protection.regular_expression).search
    texts = {token: text for token, text in enumerate(vocabulary.texts) if text and token not in vocabulary.control}
    parts = _parts(protection.regular_expression) if vocabulary.fragments else frozenset()
    found = [
        token
        for token, text in texts.items()
        if search(text) or not parts.isdisjoint(broken(vocabulary.fragments.get(token, b"")))
    ]
    if len(found) in (0, len(texts)):
        all_or_none = "all" if found else "none of the"
        raise ValueError(
            f"protect {short_repr(protection.pattern)} matches {all_or_none} {len(texts)} tokens of this vocabulary, "
            f"so {'nothing would be relaxed (the rule lossless does that)' if found else 'it would protect nothing'}"
        )
    mask = torch.zeros(len(vocabulary.texts), dtype=torch.bool)
    mask[found] = True
    return mask


@lru_cache(maxsize=32)
def _parts(regular_expression: str) -> frozenset[bytes]:
    """Return all proper parts of the UTF-8 bytes of characters that an expression finds by themselves, or contains."""
    search = re.compile(regular_expression).search
    escaped = re.findall(r"\\(?:x([\da-f]{2})|u([\da-f]{4})|U([\da-f]{8}))", regular_expression, re.IGNORECASE)
    written = {*map(ord, regular_expression), *(int("".join(digits), 16) for digits in escaped)}
    parts = set()
    for number in (*range(0x80, 0xD800), *range(0xE000, sys.maxunicode + 1)):  # characters of several bytes
        if number in written or search(chr(number)):
            spelled = chr(number).encode()
            ends = range(1, len(spelled) + 1)
            parts |= {spelled[start:end] for end in ends for start in range(end) if end - start < len(spelled)}
    return frozenset(parts)


def broken(spelled: bytes) -> list[bytes]:
    r"""Return the parts of characters that some bytes begin or end with, or consist of.

    >>> broken(b"\x99t \xf0\x9f"), broken("’t".encode())
    ([b'\x99', b'\xf0\x9f'], [])
    """
    text = spelled.decode(errors="surrogateescape")  # bytes of broken characters become U+DC80 to U+DCFF
    found = re.findall("[\udcc0-\udcff][\udc80-\udcbf]*|[\udc80-\udcbf]+", text)
    return [each.encode(errors="surrogateescape") for each in found]


@overload
def may_relax(mass: float, threshold: float) -> bool: ...
@overload
def may_relax(mass: Tensor, threshold: Tensor | float) -> Tensor: ...
def may_relax(mass: float | Tensor, threshold: float | Tensor) -> bool | Tensor:
    """Return whether a rule may judge where the target puts a mass on protected tokens: the one place that decides it.

    A threshold of 1 or more protects nothing, as rounded rows may sum to more than 1. Below it, NaN is protected.
    """
    return (mass <= threshold) | (threshold >= 1)
