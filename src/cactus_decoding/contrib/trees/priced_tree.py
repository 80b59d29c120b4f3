"""What tree shapes have in common that grow by what their tokens are worth."""

from __future__ import annotations

from typing import ClassVar

from cactus_decoding.arguments.knobs import check_knobs
from cactus_decoding.arguments.spelling import spell
from cactus_decoding.drafting.lengths.base import TreeShape


class PricedTree(TreeShape):
    """A tree whose levels get the children that are worth more than a price; see `PricedGrowth`.

    Attributes:
        nodes: tokens in all at most.
        depth: levels at most.
        width: children of one token at most that are its likeliest tokens.
        drawn: whether a further one may be drawn, 0 or 1.
        lookup: how many of the tokens may be copied from where the text repeats itself.
    """

    name: ClassVar[str]
    nodes: int
    depth: int
    width: int
    drawn: int
    lookup: int

    def __post_init__(self) -> None:
        """Check the parameters."""
        check_knobs(self)
        if not self.width and not self.drawn:
            raise ValueError("a tree needs children: width and drawn must not both be 0")

    def __str__(self) -> str:
        """Return the text that `as_tree` turns into one that has learnt nothing yet."""
        return spell(self.name, self).replace(":", ",")

    @property
    def max_draft_tokens(self) -> int:
        """How deep it may be."""
        return min(self.depth, self.nodes)

    @property
    def max_nodes(self) -> int:
        """How many tokens it may have."""
        return self.nodes

    @property
    def max_drawn(self) -> int:
        """How many children of a token may be drawn."""
        return self.drawn

    @property
    def num_looked_up(self) -> int:
        """How many tokens may be copied from where the text repeats itself, beside a draft model's."""
        return min(self.lookup, self.nodes)

    def max_children(self, depth: int) -> int:
        """Return how many children a token may have."""
        return self.width + self.drawn
