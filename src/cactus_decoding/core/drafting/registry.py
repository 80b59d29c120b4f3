"""Drafters, draft lengths and trees by name, and their text spellings."""

from __future__ import annotations

import re
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol

from cactus_decoding import zoo
from cactus_decoding.core.checks import short_repr, suggestion
from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.drafting.lengths import ConfidenceStop, FixedLength
from cactus_decoding.core.drafting.lookup import NgramDrafter, SuffixDrafter
from cactus_decoding.core.drafting.trees.best_first import BestFirstTree
from cactus_decoding.core.drafting.trees.shape import StaticTree, TreeShape
from cactus_decoding.core.models.loading import check_model_name, loaders
from cactus_decoding.core.spelling import parse
from cactus_decoding.core.types import Drafter, DraftLength
from cactus_decoding.zoo import BUNDLED


class NamedDrafter(Protocol):
    """A drafter that is chosen by name, before there is a target."""

    def drafter(self, target: Any) -> Drafter:
        """Return the drafter for a target's model."""


DRAFTERS: dict[str, type[Any]] = {
    "suffix": SuffixDrafter,
    "ngram": NgramDrafter,
    **{name: drafter for loader in loaders() for name, drafter in loader.drafters.items()},
}
"""Drafters that need no weights of their own, by name: each has a method ``drafter`` that fits it to a target.

Engines add those that only their models have, such as ``early_exit`` of transformers.
"""
LOOK_UPS = ("suffix", "ngram")  # those that copy from the text, which go with any target
LOOK_UP = LOOK_UPS[0]  # the default draft of any target but the bundled one

DRAFT_LENGTHS: dict[str, type[DraftLength]] = {"fixed": FixedLength, "confidence": ConfidenceStop, "auto": AutoLength}
"""Every draft length by its name."""
TREE_SHAPES: dict[str, type[TreeShape]] = {"static": StaticTree, "best_first": BestFirstTree}
"""Every tree shape by its name; that of a static one is also its first parameter: ``static=4.2.2.1``."""
_NUMBER = re.compile(r"[+-]?\d{1,18}")


def is_drafter(text: str) -> bool:
    """Whether a text begins with a drafter's name; if not, it names a model."""
    return text.strip().partition(":")[0] in DRAFTERS


def parse_drafter(text: str) -> NamedDrafter | None:
    """Return the drafter of a spelling such as ``ngram`` or ``early_exit:layers=3``; None where it names a model."""
    return parse("draft", text, DRAFTERS) if is_drafter(text) else None


def check_model_names(target: str | Path | None, *drafts: str | Path | None) -> None:
    """Raise `ValueError` for a target or a draft that cannot be a model; reads no weights and asks no hub."""
    if isinstance(target, str) and target.partition(":")[0] in DRAFTERS:
        raise ValueError(f"cannot load the target: {target!r} is a draft; give --draft {target}, and a model as target")
    if target is not None and target != BUNDLED:
        check_model_name("target", target, [BUNDLED, *DRAFTERS])
    for draft in drafts:
        if draft is None:
            continue
        if zoo.draft_path(draft) is not None:
            if target not in (None, BUNDLED):
                raise ValueError(f"a bundled draft goes with the bundled target, but not with {str(target)!r}")
        elif isinstance(draft, str) and is_drafter(draft):
            parse_drafter(draft)
        else:
            check_model_name("draft", draft, [BUNDLED, *DRAFTERS])


def check_keeps_nothing(text: str) -> None:
    """Raise `ValueError` for a drafter that would show a user of a server what others were answered."""
    if getattr(parse_drafter(text), "earlier", 0):
        raise ValueError("earlier shows users each other's answers, so no server takes it: give 'suffix' without it")


def as_draft_length(draft_length: DraftLength | int | str) -> DraftLength:
    """Return a draft length from itself, from a number of proposals, or from its spelling."""
    if not isinstance(draft_length, str):
        if isinstance(draft_length, bool | type) or not isinstance(draft_length, Integral | DraftLength):
            raise TypeError(
                "num_speculative_tokens must be an integer, a draft length or its spelling, but is "
                f"{short_repr(draft_length)}"
            )
        return FixedLength(int(draft_length)) if isinstance(draft_length, Integral) else draft_length
    text = draft_length.strip()
    if _NUMBER.fullmatch(text):  # a number is what most people mean
        return parse("draft length", f"fixed:max_draft_tokens={text}", DRAFT_LENGTHS)
    if (name := text.partition(":")[0]) not in DRAFT_LENGTHS:
        raise ValueError(
            f"unknown draft length {short_repr(text)}; known are {', '.join(DRAFT_LENGTHS)}, and "
            f"num_speculative_tokens may be a number such as 6{suggestion(name, DRAFT_LENGTHS)}"
        )
    return parse("draft length", text, DRAFT_LENGTHS)


def as_tree(tree: TreeShape | str) -> TreeShape:
    if isinstance(tree, TreeShape):
        return tree
    if not isinstance(tree, str):
        raise TypeError(f"tree must be a tree's shape or its spelling, but is {short_repr(tree)}")
    text = tree.strip()
    name, _, rest = (part.strip() for part in text.partition(","))
    if name in TREE_SHAPES and name != "static":
        return parse("tree", f"{name}:{rest}", TREE_SHAPES)
    key = name.partition("=")[0].strip()
    if key not in ("static", "drawn", "lookup") or name == "static":
        close = "" if name == "static" else suggestion(key, TREE_SHAPES)
        raise ValueError(f"unknown tree {short_repr(text)}; known are static=4.2.2.1 and best_first{close}")
    return parse("tree", f"static:{text}", TREE_SHAPES)


def proposals_of(draft_length: DraftLength | int | str | None, tree: TreeShape | str | None) -> DraftLength | None:
    """Return what chooses a step's proposals, a tree's shape or how long chains are, if either is given."""
    if isinstance(draft_length, TreeShape):
        raise ValueError(f"num_speculative_tokens is a tree's shape: give tree={str(draft_length)!r}")
    chain = None if draft_length is None else as_draft_length(draft_length)
    if tree is None:
        return chain
    shape = as_tree(tree)
    if chain is not None and chain != FixedLength(shape.max_draft_tokens):
        raise ValueError(
            f"tree and num_speculative_tokens exclude each other: give one of them, but they are {shape} and {chain}"
        )
    return shape
