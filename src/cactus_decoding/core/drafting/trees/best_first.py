"""A tree that grows where the draft is likely to be right, and the base of trees that grow by price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.trees.priced_growth import KeepChances, PricedGrowth
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.spelling import spell


class PricedTree(TreeShape):
    """A tree whose levels get the children that are worth more than a price; see `PricedGrowth`."""

    name: ClassVar[str]
    nodes: int
    depth: int
    width: int
    drawn: int
    lookup: int

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.width and not self.drawn:
            raise ValueError("a tree needs children: width and drawn must not both be 0")

    def __str__(self) -> str:
        return spell(self.name, self).replace(":", ",")

    @property
    def max_draft_tokens(self) -> int:
        return min(self.depth, self.nodes)

    @property
    def max_nodes(self) -> int:
        return self.nodes

    @property
    def max_drawn(self) -> int:
        return self.drawn

    @property
    def num_looked_up(self) -> int:
        return min(self.lookup, self.nodes)

    def max_children(self, depth: int) -> int:
        return self.width + self.drawn


@dataclass(frozen=True)
class BestFirstTree(PricedTree):
    """Proposes the tokens that are likeliest to be reached and kept, ``nodes`` in all.

    A token is reached and kept with the product of the chances on the way to it. That of a fixed child is its
    probability in the draft, before temperature and truncation; that of the drawn one beside the fixed children S is
    ``acceptance`` times the probability outside S. Each level gets the children that are worth more than a price, which
    is the lowest at which they and what is expected to follow them are no more tokens than are left.

    A drawn child counts as what it is expected to be: whatever is drawn, its siblings and its place stay. What grows
    after it does look at its probabilities. If the whole tree's tokens were ranked in the end, as EAGLE-2 (arXiv
    2406.16858) does where nothing is drawn, siblings would be dropped for what was drawn, and lossless would no longer
    be lossless.

    Raises:
        TypeError, ValueError: for a parameter of the wrong type, or out of range.

    Example:
        >>> import torch
        >>> growth = BestFirstTree(nodes=4).grow(8)
        >>> growth.split(torch.tensor([[0.97, 0.02, 0.01]]).log(), [[]])  # the draft is sure: further levels gain more
        [ChildCounts(fixed=1, drawn=0)]
        >>> growth.promising()
        [0]
    """

    nodes: Annotated[int, Field(ge=1, le=1024, description="in all at most"), Setting("tokens")] = 16
    depth: Annotated[int, Field(ge=1, le=100, description="levels at most")] = 8
    width: Annotated[
        int, Field(ge=0, le=64, description="of the likeliest tokens that may follow one"), Setting("tokens")
    ] = 4
    drawn: Annotated[int, Field(ge=0, le=1, description="of the others"), Setting("tokens")] = 1
    acceptance: Annotated[float, Field(gt=0, lt=1, description="how likely a drawn token is thought to be kept")] = 0.9
    lookup: Annotated[
        int, Field(ge=0, le=64, description="copied from where the text repeats itself"), Setting("tokens")
    ] = 0

    name = "best_first"

    def grow(self, limit: int) -> PricedGrowth:
        judge = KeepChances(
            self.width,
            self.drawn,
            of_fixed=lambda probability: probability,
            of_drawn=lambda _: self.acceptance,
            of_looked_up=lambda probability: (1 + probability) / 2,  # which the text has repeated too
        )
        return PricedGrowth(judge, self.nodes, min(limit, self.max_draft_tokens), self.acceptance)
