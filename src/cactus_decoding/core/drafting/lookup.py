"""Drafters that copy from where a text repeats itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch

from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.core.drafting.trees.shape import LookupTree, TreeShape
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal


@dataclass
class _Response:
    """What a drafter keeps of a response: its text, and the shape of its trees."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    shape: TreeShape | None = None


@dataclass(frozen=True)
class LookUpDrafter(Drafter):
    """Proposes what followed where the text's end stood before: deterministic, so without probabilities.

    Where the draft length is a tree's shape, several places become its branches, the best first.

    Attributes:
        name: in the registry.
    """

    _response: _Response = field(default_factory=_Response, init=False, repr=False, compare=False)

    name: ClassVar[str]
    grows_trees: ClassVar[bool] = True
    may_be_left_out: ClassVar[bool] = True

    def __str__(self) -> str:
        """Return the text that `parse_drafter` turns into this one."""
        return spell(self.name, self)

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Hear whether to propose trees."""
        self._response.shape = length if isinstance(length, TreeShape) else None

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose up to ``limit`` tokens, or a tree of so many levels; none where nothing matches."""
        self.follow(token_ids)
        if (shape := self._response.shape) is None:
            return Proposal(next(iter(self.branches(limit)), []), None)
        found = LookupTree.of(self.branches(limit), shape.max_nodes, shape.max_children)
        found = found.only(shape.choose_looked_up(found.parents, found.ranks()))
        return Proposal(found.token_ids, None, found.parents)

    def follow(self, token_ids: list[int]) -> None:
        """Read a text, which usually goes on from the last one."""
        self._response.index.follow(token_ids)

    @abstractmethod
    def branches(self, limit: int) -> Iterable[list[int]]:
        """Return up to ``limit`` tokens behind each place that is found, the best first."""

    def drafter(self, target: Any) -> Self:
        """Return the drafter itself: it is the same for every target."""
        return self

    def twin(self) -> Self:
        """Return one with the same settings, which has read nothing."""
        return replace(self)
