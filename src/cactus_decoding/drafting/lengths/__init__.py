"""How many tokens to propose in each step, and as what tree: one way a file, one registry, and their text spelling."""

from __future__ import annotations

import re
from numbers import Integral

from cactus_decoding.arguments.contributed import Contributed
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.arguments.values import shown, suggestion
from cactus_decoding.drafting.lengths.base import FixedLength, TreeShape
from cactus_decoding.types import DraftLength

__all__ = [
    "DRAFT_LENGTHS",
    "TREE_SHAPES",
    "FixedLength",
    "TreeShape",
    "as_draft_length",
    "as_tree",
    "proposals_of",
]

DRAFT_LENGTHS = Contributed[type["DraftLength"]](
    {
        "fixed": "cactus_decoding.drafting.lengths.base:FixedLength",
        "confidence": "cactus_decoding.drafting.lengths.confidence:ConfidenceStop",
        "adaptive": "cactus_decoding.drafting.lengths.adaptive:AdaptiveLength",
        "auto": "cactus_decoding.drafting.automatic:AutoLength",
    }
)
"""Every draft length by its name."""
TREE_SHAPES = Contributed[type["TreeShape"]](
    {
        "static": "cactus_decoding.drafting.lengths.static_tree:StaticTree",
        "best_first": "cactus_decoding.contrib.trees.best_first:BestFirstTree",
        "adaptive": "cactus_decoding.contrib.trees.adaptive_tree:AdaptiveTree",
    }
)
"""Every tree shape by its name; that of a static one is also its first parameter: ``static=4.2.2.1``."""
_NUMBER = re.compile(r"[+-]?\d{1,18}")


def as_draft_length(length: DraftLength | int | str) -> DraftLength:
    """Return a draft length from itself, from a number of proposals, or from its spelling.

    Raises `TypeError` for anything else, `ValueError` for a negative number or a spelling that is none.

    Example:
        >>> as_draft_length(6), as_draft_length("6")
        (FixedLength(max_draft_tokens=6), FixedLength(max_draft_tokens=6))
        >>> as_draft_length("confidence:treshold=0.3")
        Traceback (most recent call last):
        ValueError: unknown parameter 'treshold' in ...; parameters of confidence are: max_draft_tokens, ...
    """
    if not isinstance(length, str):
        if isinstance(length, bool) or not isinstance(length, (Integral, DraftLength)) or isinstance(length, type):
            raise TypeError(
                f"num_speculative_tokens must be an integer, a draft length or its spelling, but is {shown(length)}"
            )
        return FixedLength(int(length)) if isinstance(length, Integral) else length
    text = length.strip()
    if _NUMBER.fullmatch(text):  # a number is what most people mean
        return parse("draft length", f"fixed:max_draft_tokens={text}", DRAFT_LENGTHS)
    if (name := text.partition(":")[0]) not in DRAFT_LENGTHS:
        raise ValueError(
            f"unknown draft length {shown(text)}; known are {', '.join(DRAFT_LENGTHS)}, and "
            f"num_speculative_tokens may be a number such as 6{suggestion(name, DRAFT_LENGTHS)}"
        )
    return parse("draft length", text, DRAFT_LENGTHS)


def as_tree(tree: TreeShape | str) -> TreeShape:
    """Return a tree's shape from itself or from its spelling.

    Raises `TypeError` for anything else, `ValueError` for a spelling that is none.

    Example:
        >>> as_tree("static=4.2.2.1"), str(as_tree("best_first,nodes=16"))
        (StaticTree(static='4.2.2.1', drawn=1, lookup=0), 'best_first')
    """
    if isinstance(tree, TreeShape):
        return tree
    if not isinstance(tree, str):
        raise TypeError(f"tree must be a tree's shape or its spelling, but is {shown(tree)}")
    text = tree.strip()
    name, _, rest = (part.strip() for part in text.partition(","))
    if name in TREE_SHAPES and name != "static":
        return parse("tree", f"{name}:{rest}", TREE_SHAPES)
    key = name.partition("=")[0].strip()
    if key not in ("static", "drawn", "lookup") or name == "static":
        close = "" if name == "static" else suggestion(key, TREE_SHAPES)
        raise ValueError(f"unknown tree {shown(text)}; known are static=4.2.2.1, best_first and adaptive{close}")
    return parse("tree", f"static:{text}", TREE_SHAPES)


def proposals_of(length: DraftLength | int | str | None, tree: TreeShape | str | None) -> DraftLength | None:
    """Return what chooses a step's proposals: a tree's shape or how long chains are; None where nothing is said."""
    if isinstance(length, TreeShape):
        raise ValueError(f"num_speculative_tokens is a tree's shape: give tree={str(length)!r}")
    chain = None if length is None else as_draft_length(length)
    if tree is None:
        return chain
    shape = as_tree(tree)
    if chain is not None and chain != FixedLength(shape.max_draft_tokens):
        raise ValueError(
            f"tree and num_speculative_tokens exclude each other: give one of them, but they are {shape} and {chain}"
        )
    return shape
