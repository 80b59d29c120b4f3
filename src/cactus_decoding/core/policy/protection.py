"""Protected tokens: positions at which the target is about to write one of them are judged losslessly."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, overload

from pydantic import BeforeValidator, Field

from cactus_decoding.core.declared import Model, Setting
from cactus_decoding.core.mistakes import shown, suggestion

if TYPE_CHECKING:
    from torch import Tensor

    from cactus_decoding.core.policy.vocabulary import Vocabulary

PATTERNS = {
    "digits": r"\d",
    "numbers_and_operators": r"\d|[-+*/=<>^%×÷±≤≥≠]",
    "json": r'[{}\[\]":,\\]|\b(?:true|false|null)\b|\d',
    "code": r"[(){}\[\]<>=;:+\-*/%&|^~!@#$\\.,'\"`_]|\n|^\s+$|\d",
    "negation": r"\b(?i:no|not|never|none|nobody|nothing|neither|nor|cannot|without)\b|n['’]t\b|^['’]t$",
}
"""Named sets of tokens, each a pattern that is searched for in a token's text."""


def named_sets(pattern: str) -> str | None:
    """Return a pattern of named sets, each once and in their order; None for any other.

    Servers take no others from requests: searching a vocabulary for a regular expression may take for ever.

    Example:
        >>> named_sets("json | digits"), named_sets("a+")
        ('digits|json', None)
    """
    asked = {name.strip() for name in pattern.split("|")}
    return "|".join(name for name in PATTERNS if name in asked) if asked <= set(PATTERNS) else None


def named_protection(pattern: object) -> object:
    """Return a client's pattern of named sets, each once and in their order; raise `ValueError` for any other.

    What is no text is looked at elsewhere.

    Example:
        >>> named_protection("json | digits")
        'digits|json'
    """
    if not isinstance(pattern, str):
        return pattern
    named = named_sets(pattern)
    if named is None:
        raise ValueError(
            f"protect must be one of {', '.join(PATTERNS)}, several of them joined by '|', or none, but is "
            f"{shown(pattern)}: a request may bring no regular expression of its own, which could keep the server busy "
            "for ever; the server's own setting may be one"
        )
    return named


def _expression(pattern: str) -> str:
    """Return a pattern that can be searched for; raise `TypeError`, `ValueError` for any other."""
    allowed = f"one of {', '.join(PATTERNS)} or a regular expression"
    if not isinstance(pattern, str):
        raise TypeError(f"protect must be a text, {allowed}, but is {shown(pattern)}")
    if not pattern.strip():
        raise ValueError(f"protect must be {allowed}, but is empty")
    for part in pattern.split("|"):
        close = suggestion(part, PATTERNS, cutoff=0.8)
        if close and part.strip() not in PATTERNS:  # which would protect next to nothing, without a word
            raise ValueError(
                f"protect has no set of tokens named {part.strip()!r}{close} (for the text itself write "
                f"'(?:{part.strip()})')"
            )
    try:
        re.compile(_regular_expression(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"protect must be {allowed}, but {shown(pattern)} is neither: {error}") from error
    return pattern


def _regular_expression(pattern: str) -> str:
    parts = pattern.split("|")
    return "|".join(f"(?:{PATTERNS[part.strip()]})" if part.strip() in PATTERNS else part for part in parts)


class Protection(Model):
    r"""Positions to judge losslessly, because the target may write a token there that must not change.

    A position is protected where the target's row q puts more than ``threshold`` on the tokens whose text matches:

    .. math:: \sum_{x\ \text{matches}} q(x) > \text{threshold}

    It looks at the target's row only and never at the drafted token, so a protected rule still has its relaxed target,
    and every guarantee of the rule and of a budget holds. The text of a token is the one it adds behind another one,
    its leading space included; control tokens, such as the end of a text, have none. A token that holds a part of a
    character, as byte-level tokens may, matches where any character that it can be a part of matches by itself, or
    is written in the pattern: it is not known which of them follows, so that ``≠`` is protected at each of its tokens,
    and more than it. A pattern is searched for in one token at a time: of texts that are spread over tokens no more
    than such parts is found.

    Attributes:
        pattern: a name out of `PATTERNS`, a regular expression that is searched for in the text of each token, or
            several of either joined by ``|``.
        threshold: the largest probability of such tokens at which a position may be relaxed, in [0, 1].

    Raises `TypeError` for a pattern that is no text, or a threshold that is no number; `ValueError` for a pattern that
    is empty or no regular expression, or a threshold out of range.

    Sources: design of this project; the idea that few tokens matter is that of AutoJudge (arXiv 2504.20039).

    Example:
        >>> Protection("digits")
        Protection(pattern='digits', threshold=0.01)
        >>> from cactus_decoding.core.policy.vocabulary import Vocabulary
        >>> words = Vocabulary((" cats", " 3", "4", " or"))
        >>> Protection("digits").mask(words)
        tensor([False,  True,  True, False])
    """

    pattern: Annotated[
        str,
        BeforeValidator(_expression),
        Field(
            description="Judge losslessly where the target may write a token of this kind: "
            f"{', '.join(PATTERNS)}, several joined by '|', or a regular expression over a token's text.",
        ),
        Setting(flat="protect", metavar="PATTERN", from_clients=named_protection),
    ]
    threshold: Annotated[
        float,
        Field(ge=0, le=1, description="The largest probability of such tokens at which a position may be relaxed."),
        Setting(flat="protect_threshold", metavar="P", from_clients=True),
    ] = 0.01

    @property
    def regular_expression(self) -> str:
        """What is searched for in the tokens' texts."""
        return _regular_expression(self.pattern)

    def mask(self, vocabulary: Vocabulary) -> Tensor:
        """Return which tokens are protected, ``[vocabulary]``; raise `ValueError` if there are none, or no others."""
        return _mask(self, vocabulary)


@lru_cache(maxsize=32)
def _mask(protection: Protection, vocabulary: Vocabulary) -> Tensor:
    import torch  # what can be protected is known without

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
            f"protect {shown(protection.pattern)} matches {all_or_none} {len(texts)} tokens of this vocabulary, so "
            f"{'nothing would be relaxed (the rule lossless does that)' if found else 'it would protect nothing'}"
        )
    mask = torch.zeros(len(vocabulary.texts), dtype=torch.bool)
    mask[found] = True
    return mask


@lru_cache(maxsize=32)
def _parts(regular_expression: str) -> frozenset[bytes]:
    """Return all proper parts of the UTF-8 bytes of characters that an expression finds by themselves, or writes."""
    search = re.compile(regular_expression).search
    escaped = re.findall(r"\\(?:x([\da-f]{2})|u([\da-f]{4})|U([\da-f]{8}))", regular_expression, re.IGNORECASE)
    written = {*map(ord, regular_expression), *(int("".join(digits), 16) for digits in escaped)}
    parts = set()
    for number in (*range(0x80, 0xD800), *range(0xE000, sys.maxunicode + 1)):  # what has several bytes
        if number in written or search(chr(number)):
            spelled = chr(number).encode()
            ends = range(1, len(spelled) + 1)
            parts |= {spelled[start:end] for end in ends for start in range(end) if end - start < len(spelled)}
    return frozenset(parts)


def broken(spelled: bytes) -> list[bytes]:
    r"""Return the parts of characters that some bytes begin or end with, or are.

    Example:
        >>> broken(b"\x99t \xf0\x9f"), broken("’t".encode())
        ([b'\x99', b'\xf0\x9f'], [])
    """
    text = spelled.decode(errors="surrogateescape")  # bytes of no whole character become U+DC80 to U+DCFF
    found = re.findall("[\udcc0-\udcff][\udc80-\udcbf]*|[\udc80-\udcbf]+", text)
    return [each.encode(errors="surrogateescape") for each in found]


@overload
def may_relax(mass: float, threshold: float) -> bool: ...
@overload
def may_relax(mass: Tensor, threshold: Tensor | float) -> Tensor: ...
def may_relax(mass: float | Tensor, threshold: float | Tensor) -> bool | Tensor:
    """Say whether a rule may judge where the target puts a mass on protected tokens: the one place that decides it.

    A threshold of 1 or more protects nothing: rounded rows may hold more than everything. Below it, NaN is protected.

    Example:
        >>> may_relax(0.01, 0.01), may_relax(1.0000001, 1.0), may_relax(float("nan"), 0.5)
        (True, True, False)
    """
    return (mass <= threshold) | (threshold >= 1)
