"""Drafters that copy from where a text repeats itself, and the trees that they make of what they find."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from cactus_decoding.arguments.later import torch
from cactus_decoding.arguments.spelling import spell
from cactus_decoding.drafting.lengths import TreeShape
from cactus_decoding.drafting.suffix_index import SuffixIndex
from cactus_decoding.types import ROOT, Drafter, DraftLength, LogitsToProbs, Proposal


@dataclass
class LookedUp:
    """What was found behind matches, as branches of a tree: the same tokens behind the same ones stand once.

    Attributes:
        token_ids: parents before their children.
        parents: of each the place of the one that it follows, -1 for the text.
    """

    token_ids: list[int]
    parents: list[int]

    @classmethod
    def of(cls, branches: Iterable[list[int]], max_nodes: int, max_children: Callable[[int], int]) -> LookedUp:
        """Return as many of some branches as there is room for, the first ones first.

        There may be ``max_nodes`` in all; see `TreeShape.max_children` for how many may follow a token.

        Example:
            >>> LookedUp.of([[5, 6], [5, 7], [8]], 3, lambda depth: 2)
            LookedUp(token_ids=[5, 6, 7], parents=[-1, 0, 0])
        """
        found = cls([], [])
        for tokens in branches:
            if len(found.token_ids) >= max_nodes:
                break
            at = ROOT
            for depth, token in enumerate(tokens):
                behind = found.behind(at)
                known = next((i for i in behind if found.token_ids[i] == token), None)
                if known is None:
                    if len(behind) >= max_children(depth) or len(found.token_ids) >= max_nodes:
                        break
                    known = len(found.token_ids)
                    found.token_ids.append(token)
                    found.parents.append(at)
                at = known
        return found

    def behind(self, place: int | None) -> list[int]:
        """Return the places of what follows one of the tokens, or with -1 the text; nothing for None."""
        return [] if place is None else [i for i, parent in enumerate(self.parents) if parent == place]

    def ranks(self) -> list[int]:
        """Return of each token how many others that follow the same one stand before it."""
        return [self.behind(parent).index(i) for i, parent in enumerate(self.parents)]

    def only(self, places: list[int]) -> LookedUp:
        """Return some of the tokens, by their ascending places, each of which follows another one or the text."""
        new = {ROOT: ROOT} | {place: i for i, place in enumerate(places)}
        return LookedUp([self.token_ids[i] for i in places], [new[self.parents[i]] for i in places])


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
        found = LookedUp.of(self.branches(limit), shape.max_nodes, shape.max_children)
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
