"""What a drafter proposes, and how logits become the rows that it is judged in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

ROOT = -1
"""The place in a tree that stands for the text itself."""


class Proposal(NamedTuple):
    """Tokens that a drafter proposes: the nodes of a tree, of which a chain is the common case.

    Attributes:
        token_ids: the proposed tokens, parents before their children; there may be none.
        probs: the rows they were really drawn from, ``[len(token_ids), vocabulary]``; None if the choice was
            deterministic. In a tree a row for each token that has children, the text's own first, in their order.
        parents: of each token the place of the one it follows, -1 for the text itself; None for a chain, whose parents
            are -1, 0, 1, and so on.
        drawn: of a tree's tokens, which were drawn: from their row without its fixed children and those drawn before,
            and as a function of the text before them alone where they are not. None for all, if there are rows, or
            none.
    """

    token_ids: list[int]
    probs: Tensor | None
    parents: list[int] | None = None
    drawn: list[bool] | None = None

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it."""
        return self.parents is None or (self.drawn is None and self.parents == [*range(ROOT, len(self.token_ids) - 1)])

    def tokens_to(self, node: int) -> list[int]:
        """Return the tokens from the text to a proposal, itself included; none for -1."""
        if self.parents is None:
            return self.token_ids[: node + 1]
        path: list[int] = []
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]

    def path_along(self, token_ids: list[int]) -> list[int]:
        """Return the places of the proposals that a continuation of the text goes along, as far as it does."""
        assert self.parents is not None
        path, at = [], ROOT
        nodes = range(len(self.token_ids))
        places = dict(zip(zip(self.parents, self.token_ids, strict=True), nodes, strict=True))
        for token in token_ids:
            if (at, token) not in places:
                break
            at = places[at, token]
            path.append(at)
        return path

    @property
    def depth(self) -> int:
        """The most proposals that can be kept."""
        if self.parents is None:
            return len(self.token_ids)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)


LogitsToProbs = Callable[[Tensor, list[int]], Tensor]
"""``(logits [rows, vocabulary], token_ids) -> probs``: the last row follows all tokens, each before it one fewer."""
