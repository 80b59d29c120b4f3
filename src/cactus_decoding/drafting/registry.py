"""Drafters by name, and their text spelling."""

from __future__ import annotations

from types import MappingProxyType

from cactus_decoding.arguments.spelling import parse
from cactus_decoding.drafting.early_exit import EarlyExit
from cactus_decoding.drafting.ngram import NgramDrafter

DRAFTERS = MappingProxyType({"ngram": NgramDrafter, "early_exit": EarlyExit})
"""Drafters that need no weights of their own, by name: each has a method ``drafter`` that fits it to a target."""


def parse_drafter(text: str) -> NgramDrafter | EarlyExit | None:
    """Return the drafter of a spelling such as ``ngram`` or ``early_exit:layers=3``; None where it names a model.

    Raises:
        ValueError: for an unknown parameter, one that is missing, or a value out of range.

    Example:
        >>> parse_drafter("early_exit:layers=3"), parse_drafter("path/to/model")
        (EarlyExit(layers=3), None)
    """
    return parse("draft", text, DRAFTERS) if text.strip().partition(":")[0] in DRAFTERS else None
