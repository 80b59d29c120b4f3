"""Proposals copied from earlier in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.types import Drafter, LogitsToProbs, Proposal


@dataclass(frozen=True)
class NgramDrafter(Drafter):
    """Prompt lookup: finds the latest earlier occurrence of the last few tokens and proposes what followed it.

    The longest match wins. The proposal is deterministic, so it has no probabilities. Source: Saxena (2023).

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

    def __post_init__(self) -> None:
        longest = check_integer("max_ngram_size", self.max_ngram_size, 1)
        object.__setattr__(self, "max_ngram_size", longest)
        object.__setattr__(self, "min_ngram_size", check_integer("min_ngram_size", self.min_ngram_size, 1, longest))

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose up to ``limit`` tokens, or none where nothing matches."""
        for n in range(min(self.max_ngram_size, len(token_ids) - 1), self.min_ngram_size - 1, -1):
            run = token_ids[-n:]
            for start in range(len(token_ids) - n - 1, -1, -1):
                if token_ids[start : start + n] == run:
                    return Proposal(token_ids[start + n : start + n + limit], None)
        return Proposal([], None)

    def drafter(self, target: Any) -> NgramDrafter:
        """Return the drafter itself: it is the same for every target."""
        return self

    def twin(self) -> NgramDrafter:
        """Return the drafter itself: it remembers nothing."""
        return self
