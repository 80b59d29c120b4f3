"""Proposals copied from the latest place where a few tokens stood."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cactus_decoding.core.drafting.lookup import LookUpDrafter
from cactus_decoding.core.mistakes import check_integer


@dataclass(frozen=True)
class NgramDrafter(LookUpDrafter):
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

    name: ClassVar[str] = "ngram"

    def __post_init__(self) -> None:
        longest = check_integer("max_ngram_size", self.max_ngram_size, 1)
        object.__setattr__(self, "max_ngram_size", longest)
        object.__setattr__(self, "min_ngram_size", check_integer("min_ngram_size", self.min_ngram_size, 1, longest))

    def branches(self, limit: int) -> Iterator[list[int]]:
        """Yield what followed each match, the longest and latest first."""
        return self._response.index.continuations(limit, self.max_ngram_size, self.min_ngram_size)
