"""Several drafts, each drawn by itself, as one tree in which equal beginnings stand once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.trees.growing import GrowingTree
from cactus_decoding.core.drafting.trees.shape import MAX_NODES, Growth, TreeShape
from cactus_decoding.core.sampling.rows import check_drawn
from cactus_decoding.core.types import ROOT


@dataclass(frozen=True)
class IndependentDrafts(TreeShape):
    """Proposes several drafts that the draft model draws independently of each other.

    Where drafts begin alike they share their tokens. The children of a token stand in the order in which they were
    drawn first. So given those before it, each is drawn from the draft's row without them, as in other trees; only how
    many there are is random. That a further one exists does not depend on which token it is, so that every way to
    verify drawn children emits what it emits with a fixed number of them.

    Raises:
        TypeError, ValueError: for a parameter of the wrong type, or out of range.

    Example:
        >>> shape = IndependentDrafts(drafts=4, depth=6)
        >>> str(IndependentDrafts(drafts=3)), shape.max_nodes
        ('independent,drafts=3', 24)
    """

    drafts: Annotated[int, Setting("that are drawn, each by itself", ge=1, le=64)] = 4
    depth: Annotated[int, Setting("of each", "tokens", ge=1, le=100)] = 6

    name = "independent"
    fixed: ClassVar[bool] = True
    independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_nodes > MAX_NODES:
            raise ValueError(f"a tree may have at most {MAX_NODES} tokens, but {self} has up to {self.max_nodes}")

    @property
    def max_draft_tokens(self) -> int:
        return self.depth

    @property
    def max_nodes(self) -> int:
        return self.drafts * self.depth

    @property
    def max_drawn(self) -> int:
        return self.drafts

    def grow(self, limit: int) -> Growth:
        raise NotImplementedError("drafts are drawn by `draw`, not settled level by level")

    def draw(
        self,
        limit: int,
        read: Callable[[GrowingTree, list[int]], tuple[Tensor, Tensor]],
        choose: Callable[[Tensor, int], list[int]],
    ) -> GrowingTree:
        """Draw the drafts, up to ``limit`` tokens each.

        Args:
            limit: how many tokens may be kept.
            read: returns the draft's logits after some nodes and what children are drawn from, ``[nodes, vocabulary]``.
            choose: draws so many tokens independently from one row, ``[vocabulary]``.
        """
        tree, level = GrowingTree(drafts=self.drafts), {ROOT: self.drafts}  # nodes, and how many drafts go through them
        for depth in range(min(limit, self.depth)):
            _, probs = read(tree, [*level])
            following: dict[int, int] = {}
            for place, (node, count) in enumerate(level.items()):
                tokens = Counter(choose(probs[place], count))  # in the order in which they were drawn first
                check_drawn("draft", max(tokens), probs, depth)
                new = tree.add_drawn(node, [*tokens], probs[place : place + 1])
                following |= zip(new, tokens.values(), strict=True)
            level = following
        return tree
