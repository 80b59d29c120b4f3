"""Proposals copied from earlier in the text."""

from __future__ import annotations

import torch

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.types import LogitsToProbs, Proposal


class NgramDrafter:
    """Prompt lookup: finds the latest earlier occurrence of the last few tokens and proposes what followed it.

    The longest match wins. The proposal is deterministic, so it has no probabilities. Source: Saxena (2023).

    Args:
        longest: longest run of tokens to look for, 1 or more.
        shortest: shortest run that counts as a match, from 1 to ``longest``.

    Example:
        >>> NgramDrafter().propose([5, 6, 7, 8, 5, 6], 2, lambda logits, ids: logits, None).token_ids
        [7, 8]
    """

    def __init__(self, longest: int = 3, shortest: int = 1) -> None:
        """Check and keep the run lengths."""
        check_integer("longest", longest, 1)
        check_integer("shortest", shortest, 1, longest)
        self.longest, self.shortest = longest, shortest

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose up to ``limit`` tokens, or none where nothing matches."""
        for n in range(min(self.longest, len(token_ids) - 1), self.shortest - 1, -1):
            run = token_ids[-n:]
            for start in range(len(token_ids) - n - 1, -1, -1):
                if token_ids[start : start + n] == run:
                    return Proposal(token_ids[start + n : start + n + limit], None)
        return Proposal([], None)
