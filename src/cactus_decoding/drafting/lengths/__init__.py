"""How many tokens to propose in each step, and as what tree: one way a file, one registry, and their text spelling."""

from __future__ import annotations

import re
from numbers import Integral
from types import MappingProxyType

from cactus_decoding.arguments.checks import shown
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.arguments.suggestions import suggestion
from cactus_decoding.drafting.lengths.adaptive import AdaptiveLength
from cactus_decoding.drafting.lengths.confidence import ConfidenceStop
from cactus_decoding.drafting.lengths.fixed import FixedLength
from cactus_decoding.drafting.lengths.static_tree import StaticTree
from cactus_decoding.types import DraftLength

DRAFT_LENGTHS = MappingProxyType({"fixed": FixedLength, "confidence": ConfidenceStop, "adaptive": AdaptiveLength})
"""Every draft length by its name."""
TREE_SHAPES = MappingProxyType({"tree": StaticTree})
"""What may stand in the place of a draft length to propose a tree, by its name."""
_NUMBER = re.compile(r"[+-]?\d{1,18}")

__all__ = [
    "DRAFT_LENGTHS",
    "TREE_SHAPES",
    "AdaptiveLength",
    "ConfidenceStop",
    "FixedLength",
    "StaticTree",
    "as_draft_length",
]


def as_draft_length(length: DraftLength | int | str) -> DraftLength:
    """Return a draft length from itself, from a number of proposals, or from its spelling.

    Raises:
        TypeError: for anything else.
        ValueError: for a negative number or a spelling that is none.

    Example:
        >>> as_draft_length(6), as_draft_length("6")
        (FixedLength(max_draft_tokens=6), FixedLength(max_draft_tokens=6))
        >>> as_draft_length("confidence:threshold=0.3")
        ConfidenceStop(max_draft_tokens=10, threshold=0.3)
    """
    if isinstance(length, str):
        text = length.strip()
        if _NUMBER.fullmatch(text):  # a number is what most people mean
            return FixedLength(int(text))
        name = text.partition(":")[0]
        if name in TREE_SHAPES:
            return parse("tree", text, TREE_SHAPES)
        if name not in DRAFT_LENGTHS:
            known = [*DRAFT_LENGTHS, *TREE_SHAPES]
            raise ValueError(
                f"unknown draft length {shown(text)}; known are {', '.join(known)}, and "
                f"num_speculative_tokens may be a number such as 6{suggestion(name, known)}"
            )
        return parse("draft length", text, DRAFT_LENGTHS)
    if isinstance(length, bool) or not isinstance(length, (Integral, DraftLength)) or isinstance(length, type):
        raise TypeError(
            f"num_speculative_tokens must be an integer, a draft length or its spelling, but is {shown(length)}"
        )
    return FixedLength(int(length)) if isinstance(length, Integral) else length
