"""How many tokens to propose in each step, and as what tree: one way a file, one registry, and their text spelling."""

from __future__ import annotations

import re
from numbers import Integral
from types import MappingProxyType

from cactus_decoding.arguments.checks import shown
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.arguments.suggestions import suggestion
from cactus_decoding.drafting.lengths.adaptive import AdaptiveLength
from cactus_decoding.drafting.lengths.adaptive_tree import AdaptiveTree
from cactus_decoding.drafting.lengths.base import TreeShape
from cactus_decoding.drafting.lengths.best_first import BestFirstTree
from cactus_decoding.drafting.lengths.confidence import ConfidenceStop
from cactus_decoding.drafting.lengths.fixed import FixedLength
from cactus_decoding.drafting.lengths.static_tree import StaticTree
from cactus_decoding.types import DraftLength

DRAFT_LENGTHS = MappingProxyType({"fixed": FixedLength, "confidence": ConfidenceStop, "adaptive": AdaptiveLength})
"""Every draft length by its name."""
TREE = "tree"
"""How the spelling of a tree begins, which may stand in the place of a draft length: ``tree:best_first,nodes=16``."""
TREE_SHAPES: MappingProxyType[str, type[TreeShape]] = MappingProxyType(
    {"static": StaticTree, "best_first": BestFirstTree, "adaptive": AdaptiveTree}
)
"""Every tree shape by its name; that of a static one is also its first parameter: ``tree:static=4.2.2.1``."""
_NUMBER = re.compile(r"[+-]?\d{1,18}")

__all__ = [
    "DRAFT_LENGTHS",
    "TREE",
    "TREE_SHAPES",
    "AdaptiveLength",
    "AdaptiveTree",
    "BestFirstTree",
    "ConfidenceStop",
    "FixedLength",
    "StaticTree",
    "TreeShape",
    "as_draft_length",
    "is_tree",
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
        if is_tree(text):
            return _tree(text)
        if (name := text.partition(":")[0]) not in DRAFT_LENGTHS:
            known = [*DRAFT_LENGTHS, TREE]
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


def is_tree(length: int | str) -> bool:
    """Say whether a number of proposals, or the spelling of a draft length, is a tree's.

    Example:
        >>> is_tree("tree:static=4.2.2.1"), is_tree("adaptive"), is_tree(6)
        (True, False, False)
    """
    return str(length).strip().partition(":")[0] == TREE


def _tree(text: str) -> TreeShape:
    """Return the tree shape of a spelling."""
    spelled = text.partition(":")[2].strip()
    name, _, rest = (part.strip() for part in spelled.partition(","))
    if name in TREE_SHAPES and name != "static":
        return parse("tree", f"{name}:{rest}", TREE_SHAPES)
    if name.partition("=")[0].strip() not in ("static", "drawn", "lookup") or name == "static":
        close = "" if name == "static" else suggestion(name.partition("=")[0].strip(), TREE_SHAPES)
        raise ValueError(
            f"unknown tree {shown(text)}; known are tree:static=4.2.2.1, tree:best_first and tree:adaptive{close}"
        )
    return parse("tree", text, {TREE: StaticTree})
