"""Drafters by name, and their text spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cactus_decoding.arguments.contributed import Contributed
from cactus_decoding.arguments.spelling import parse

if TYPE_CHECKING:
    from cactus_decoding.drafting.early_exit import EarlyExit
    from cactus_decoding.drafting.ngram import NgramDrafter

DRAFTERS = Contributed[type["NgramDrafter | EarlyExit"]](
    {
        "ngram": "cactus_decoding.drafting.ngram:NgramDrafter",
        "early_exit": "cactus_decoding.drafting.early_exit:EarlyExit",
    }
)
"""Drafters that need no weights of their own, by name: each has a method ``drafter`` that fits it to a target."""
LOOK_UP = "ngram"
"""What drafts for a target that is named alone."""


def parse_drafter(text: str) -> NgramDrafter | EarlyExit | None:
    """Return the drafter of a spelling such as ``ngram`` or ``early_exit:layers=3``; None where it names a model.

    Raises:
        ValueError: for an unknown parameter, one that is missing, or a value out of range.

    Example:
        >>> parse_drafter("early_exit:layers=3"), parse_drafter("path/to/model")
        (EarlyExit(layers=3), None)
    """
    return parse("draft", text, DRAFTERS) if text.strip().partition(":")[0] in DRAFTERS else None
