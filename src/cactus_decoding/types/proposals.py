"""What a drafter proposes, and how logits become the rows that it is judged in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

ROOT = -1
"""The place in a tree that stands for the text itself."""


@dataclass(frozen=True)
class Proposal:
    """Tokens that a drafter proposes: the nodes of a tree, of which a chain is the common case.

    Attributes:
        token_ids: the proposed tokens, parents before their children; there may be none.
        probs: the rows they were really drawn from, one for each token that has children, the text's own first, in
            their order, ``[rows, vocabulary]``; None if the choice was deterministic.
        parents: of each token the place of the one it follows, -1 for the text itself. Left out, each follows the one
            before it.
        drawn: of each token whether it was drawn: from its row without its fixed siblings and those drawn before it;
            where it was not, it is a function of the text before it alone. Left out, all are if there are rows.
    """

    token_ids: list[int]
    probs: Tensor | None
    parents: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if not self.parents:
            object.__setattr__(self, "parents", [*range(ROOT, count - 1)])
        if not self.drawn:
            object.__setattr__(self, "drawn", [self.probs is not None] * count)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Places of the tokens behind each token that has some, the fixed ones first; keys in the order of the rows."""
        behind: dict[int, tuple[list[int], list[int]]] = {}
        for node, (parent, drawn) in enumerate(zip(self.parents, self.drawn, strict=True)):
            behind.setdefault(parent, ([], []))[drawn].append(node)
        return {parent: [*fixed, *drawn] for parent, (fixed, drawn) in sorted(behind.items())}

    @property
    def branches(self) -> bool:
        """Whether some token, or the text, has several children."""
        return len(set(self.parents)) < len(self.parents)

    @property
    def is_plain_chain(self) -> bool:
        """Whether each token follows the one before it, and all were drawn, or all are functions of the text."""
        return not self.branches and all(drawn == (self.probs is not None) for drawn in self.drawn)

    def row_behind(self, node: int) -> Tensor | None:
        """Return the draft's whole row behind a token that has children, or with -1 behind the text, if any."""
        return None if self.probs is None else self.probs[[*self.children].index(node)]

    def tokens_to(self, node: int) -> list[int]:
        """Return the tokens from the text to a proposal, itself included; none for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]

    def path_along(self, token_ids: list[int]) -> list[int]:
        """Return the places of the proposals that a continuation of the text goes along, as far as it does."""
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
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)


LogitsToProbs = Callable[[Tensor, list[int]], Tensor]
"""``(logits [rows, vocabulary], token_ids) -> probs``: the last row follows all tokens, each before it one fewer."""
