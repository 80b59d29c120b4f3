"""Proposals copied from earlier in the text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.drafting.lengths import TreeShape
from cactus_decoding.drafting.lookup import LookedUp, continuations
from cactus_decoding.types import Drafter, DraftLength, LogitsToProbs, Proposal


@dataclass(frozen=True)
class NgramDrafter(Drafter):
    """Prompt lookup: finds the latest earlier occurrence of the last few tokens and proposes what followed it.

    The longest match wins; where the draft length is a tree's shape, several become its branches, the best first. The
    proposal is deterministic, so it has no probabilities. Source: Saxena (2023).

    Attributes:
        max_ngram_size: longest run of tokens to look for, 1 or more.
        min_ngram_size: shortest run that counts as a match, from 1 to ``max_ngram_size``.

    Raises:
        ValueError: for a size out of range.

    Example:
        >>> NgramDrafter().propose([5, 6, 7, 8, 5, 6], 2, lambda logits, ids: logits, None).token_ids
        [7, 8]
    """

    max_ngram_size: int = 3
    min_ngram_size: int = 1
    _shape: TreeShape | None = field(default=None, init=False, repr=False, compare=False)  # of the response

    grows_trees: ClassVar[bool] = True
    may_be_left_out: ClassVar[bool] = True

    def __post_init__(self) -> None:
        longest = check_integer("max_ngram_size", self.max_ngram_size, 1)
        object.__setattr__(self, "max_ngram_size", longest)
        object.__setattr__(self, "min_ngram_size", check_integer("min_ngram_size", self.min_ngram_size, 1, longest))

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Hear whether to propose trees."""
        object.__setattr__(self, "_shape", length if isinstance(length, TreeShape) else None)

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose up to ``limit`` tokens, or a tree of so many levels; none where nothing matches."""
        found = continuations(token_ids, limit, self.max_ngram_size, self.min_ngram_size)
        if (shape := self._shape) is None:
            return Proposal(next(found, []), None)
        branches = LookedUp.of(found, shape.max_nodes, shape.max_children)
        branches = branches.only(shape.choose_looked_up(branches.parents, branches.ranks()))
        return Proposal(branches.token_ids, None, branches.parents)

    def drafter(self, target: Any) -> NgramDrafter:
        """Return the drafter itself: it is the same for every target."""
        return self

    def twin(self) -> NgramDrafter:
        """Return one with the same sizes."""
        return replace(self)
