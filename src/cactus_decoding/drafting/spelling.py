"""Draft lengths and shapes of trees by name, and their text spelling: known without torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cactus_decoding.arguments.contributed import Contributed
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.arguments.values import shown, suggestion

if TYPE_CHECKING:
    from cactus_decoding.types import DraftLength

DRAFT_LENGTHS = Contributed[type["DraftLength"]](
    {
        "fixed": "cactus_decoding.drafting.lengths.base:FixedLength",
        "confidence": "cactus_decoding.drafting.lengths.confidence:ConfidenceStop",
        "adaptive": "cactus_decoding.drafting.lengths.adaptive:AdaptiveLength",
        "auto": "cactus_decoding.drafting.automatic:AutoLength",
    }
)
"""Every draft length by its name."""
TREE = "tree"
"""How the spelling of a tree begins where it stands among those of draft lengths: ``tree:best_first,nodes=16``."""
TREE_SHAPES = Contributed[type["DraftLength"]](
    {
        "static": "cactus_decoding.drafting.lengths.static_tree:StaticTree",
        "best_first": "cactus_decoding.contrib.trees.best_first:BestFirstTree",
        "adaptive": "cactus_decoding.contrib.trees.adaptive_tree:AdaptiveTree",
    }
)
"""Every tree shape by its name; that of a static one is also its first parameter: ``static=4.2.2.1``."""
_NUMBER = re.compile(r"[+-]?\d{1,18}")


def is_tree(length: int | str) -> bool:
    """Say whether a number of proposals, or the spelling of a draft length, is a tree's.

    Example:
        >>> is_tree("tree:static=4.2.2.1"), is_tree("adaptive"), is_tree(6)
        (True, False, False)
    """
    return str(length).strip().partition(":")[0] == TREE


def read_length(text: str) -> Any:
    """Return the draft length, or behind ``tree:`` the tree's shape, of a spelling; raise `ValueError` for none.

    Example:
        >>> read_length("confidence:treshold=0.3")
        Traceback (most recent call last):
        ValueError: unknown parameter 'treshold' in ...; parameters of confidence are: max_draft_tokens, threshold; ...
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):  # a number is what most people mean
        return parse("draft length", f"fixed:max_draft_tokens={text}", DRAFT_LENGTHS)
    if is_tree(text):
        return read_tree(text.partition(":")[2])
    if (name := text.partition(":")[0]) not in DRAFT_LENGTHS:
        known = [*DRAFT_LENGTHS, TREE]
        raise ValueError(
            f"unknown draft length {shown(text)}; known are {', '.join(known)}, and "
            f"num_speculative_tokens may be a number such as 6{suggestion(name, known)}"
        )
    return parse("draft length", text, DRAFT_LENGTHS)


def read_tree(text: str) -> Any:
    """Return the shape of a tree that a text spells; raise `ValueError` for a spelling that is none."""
    text = text.strip()
    name, _, rest = (part.strip() for part in text.partition(","))
    if name in TREE_SHAPES and name != "static":
        return parse("tree", f"{name}:{rest}", TREE_SHAPES)
    key = name.partition("=")[0].strip()
    if key not in ("static", "drawn", "lookup") or name == "static":
        close = "" if name == "static" else suggestion(key, TREE_SHAPES)
        raise ValueError(f"unknown tree {shown(text)}; known are static=4.2.2.1, best_first and adaptive{close}")
    return parse("tree", f"static:{text}", TREE_SHAPES)
