"""A tree that grows where the draft is likely to be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cactus_decoding.arguments.knobs import Knob
from cactus_decoding.contrib.trees.priced_growth import KeepChances, PricedGrowth
from cactus_decoding.contrib.trees.priced_tree import PricedTree


@dataclass(frozen=True)
class BestFirstTree(PricedTree):
    r"""Proposes the tokens that are likeliest to be reached and kept, ``nodes`` in all.

    A token is reached and kept with the product of the chances on the way to it. That of a fixed child is its
    probability in the draft's row, before temperature and cuts; that of the drawn one beside the fixed children S is
    ``acceptance`` times what the row holds outside S. Each level gets the children that are worth more than a price,
    which is the lowest at which they and what is expected to follow them are no more tokens than are left.

    A drawn child counts as what it is expected to be: whatever is drawn, its siblings and its place stay. What grows
    behind it does look at its row. With the whole tree's tokens ranked in the end, as EAGLE-2 (arXiv 2406.16858) does
    where nothing is drawn, siblings would be dropped for what was drawn, and lossless would no longer be lossless.

    Attributes:
        nodes: tokens in all at most.
        depth: levels at most, each of which takes the draft one pass.
        width: children of one token at most that are its likeliest tokens.
        drawn: whether a further one may be drawn, 0 or 1.
        acceptance: how likely a drawn token is thought to be kept.
        lookup: how many of the tokens may be copied from where the text repeats itself.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for one out of range.

    Example:
        >>> import torch
        >>> growth = BestFirstTree(nodes=4).grow(8)
        >>> growth.split(torch.tensor([[0.97, 0.02, 0.01]]).log(), [[]])  # the draft is sure: further levels gain more
        [Split(fixed=1, drawn=0)]
        >>> growth.promising()
        [0]
    """

    nodes: Annotated[int, Knob("in all at most", "tokens", ge=1, le=1024)] = 16
    depth: Annotated[int, Knob("levels at most", ge=1, le=100)] = 8
    width: Annotated[int, Knob("of the likeliest tokens that may follow one", "tokens", ge=0, le=64)] = 4
    drawn: Annotated[int, Knob("of the others", "tokens", ge=0, le=1)] = 1
    acceptance: Annotated[float, Knob("how likely a drawn token is thought to be kept", gt=0, lt=1)] = 0.9
    lookup: Annotated[int, Knob("copied from where the text repeats itself", "tokens", ge=0, le=64)] = 0

    name = "best_first"

    def grow(self, limit: int) -> PricedGrowth:
        """Begin the tree of a step, of up to ``limit`` levels."""
        judge = KeepChances(
            self.width, self.drawn, lambda probability: probability, lambda _: self.acceptance, _of_looked_up
        )
        return PricedGrowth(judge, self.nodes, min(limit, self.max_draft_tokens), self.acceptance)


def _of_looked_up(probability: float) -> float:
    """Return how likely a token is thought to be kept that the draft gives a probability and the text has repeated."""
    return (1 + probability) / 2
