"""How many tokens to propose in each step, and as what tree: one way a file, one registry, and their text spelling."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import cast

from cactus_decoding.arguments.values import shown
from cactus_decoding.drafting.lengths.base import FixedLength, TreeShape
from cactus_decoding.drafting.spelling import DRAFT_LENGTHS, TREE, TREE_SHAPES, is_tree, read_length, read_tree
from cactus_decoding.types import DraftLength

__all__ = [
    "DRAFT_LENGTHS",
    "TREE",
    "TREE_SHAPES",
    "FixedLength",
    "TreeShape",
    "as_draft_length",
    "as_tree",
    "is_tree",
    "proposals_of",
]


def as_draft_length(length: DraftLength | int | str) -> DraftLength:
    """Return a draft length from itself, from a number of proposals, or from its spelling; behind ``tree:`` a tree's.

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
        return cast(DraftLength, read_length(length))
    if isinstance(length, bool) or not isinstance(length, (Integral, DraftLength)) or isinstance(length, type):
        raise TypeError(
            f"num_speculative_tokens must be an integer, a draft length or its spelling, but is {shown(length)}"
        )
    return FixedLength(int(length)) if isinstance(length, Integral) else length


def as_tree(tree: TreeShape | str) -> TreeShape:
    """Return a tree's shape from itself or from its spelling.

    Raises:
        TypeError: for anything else.
        ValueError: for a spelling that is none.

    Example:
        >>> as_tree("static=4.2.2.1"), str(as_tree("best_first,nodes=16"))
        (StaticTree(static='4.2.2.1', drawn=1, lookup=0), 'best_first')
    """
    if isinstance(tree, TreeShape):
        return tree
    if not isinstance(tree, str):
        raise TypeError(f"tree must be a tree's shape or its spelling, but is {shown(tree)}")
    return cast(TreeShape, read_tree(tree))


def proposals_of(length: DraftLength | int | str | None, tree: TreeShape | str | None) -> DraftLength | None:
    """Return what chooses a step's proposals: a tree's shape or how long chains are; None where nothing is said."""
    if tree is None and (isinstance(length, TreeShape) or (isinstance(length, str) and is_tree(length))):
        tree, length = (length.partition(":")[2] if isinstance(length, str) else length), None
        warnings.warn(
            f"num_speculative_tokens is a tree's shape, which will not be read any longer: give tree={str(tree)!r}",
            FutureWarning,
            stacklevel=4,
        )
    chain = None if length is None else as_draft_length(length)
    if tree is None:
        return chain
    shape = as_tree(tree)
    if chain is not None and chain != FixedLength(shape.max_draft_tokens):
        raise ValueError(
            f"tree and num_speculative_tokens exclude each other: give one of them, but they are {shape} and {chain}"
        )
    return shape
