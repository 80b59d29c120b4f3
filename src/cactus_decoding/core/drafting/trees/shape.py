"""What tree shapes have in common, how a tree grows in one step, and the tree that several matches make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from cactus_decoding.core.drafting.lengths.base import LearnsNothing
from cactus_decoding.core.types import ROOT


class ChildCounts(NamedTuple):
    """How many children a token gets.

    Attributes:
        fixed: of the likeliest tokens.
        drawn: from what the draft's row holds besides.
    """

    fixed: int
    drawn: int


class Growth(Protocol):
    """Grows the tree of one step, level by level.

    All of a level's children are settled before any of them is drawn, from the rows behind that level and what was
    settled before. So neither how many children a token has nor which are fixed can depend on what is drawn there or
    behind it, which is what exactness asks for; see docs/proofs.md.
    """

    def reserve(self, num_looked_up: int) -> None:
        """Hear before the first level how many tokens the tree has in any case."""
        ...

    def split(self, logits: Tensor, looked_up: Sequence[Sequence[float]]) -> Sequence[ChildCounts]:
        """Say how many children the tokens get that have just been read, beside those that were looked up.

        Args:
            logits: of the draft behind each of them as it gave them, ``[tokens, vocabulary]``: no temperature, no cuts;
                float32's least number where a token was looked up.
            looked_up: of each token, how likely the draft takes the children that it has in any case.
        """
        ...

    def promising(self) -> list[int]:
        """Return which of the new children are to be read for children of their own; none ends the tree.

        They are counted through: the children of the first token (looked up, fixed, then drawn ones),
        then those of the second.
        """
        ...


class TreeShape(LearnsNothing, ABC):
    """Chooses the tree that each step proposes: a draft length that drafters of trees ask how it grows."""

    fixed: ClassVar[bool] = False

    @property
    @abstractmethod
    def max_draft_tokens(self) -> int:
        """How deep a tree may be, which is how many of its tokens can be kept."""

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """How many tokens a tree may have."""

    @property
    @abstractmethod
    def max_drawn(self) -> int:
        """How many children of a token may be drawn."""

    @property
    def branches(self) -> bool:
        """Whether the next step grows a tree; if not, a draft model asks `should_continue` as for any draft length."""
        return True

    @property
    def num_looked_up(self) -> int:
        """How many tokens of the next tree may be copied from where the text repeats itself, beside a draft model's."""
        return 0

    @property
    def is_even(self) -> bool:
        """Whether all tokens but the last have as many children, so that a position is judged alike in every step."""
        return False

    def begin_step(self) -> int:
        """Return the depth."""
        return self.max_draft_tokens

    @abstractmethod
    def grow(self, limit: int) -> Growth:
        """Begin the tree of a step, of up to ``limit`` levels."""

    def max_children(self, depth: int) -> int:
        """Return how many children a token may have that follows ``depth`` others of the tree."""
        return self.max_nodes

    def choose_looked_up(self, parents: Sequence[int], ranks: Sequence[int]) -> list[int]:
        """Return which tokens to propose of a tree that was looked up, ascending, parents with their children.

        Parents are places, -1 for the text; ranks say how many others that follow the same one were found in better
        places.
        """
        return [*range(len(parents))]

    def end_walk(self, path: Sequence[int]) -> None:
        """Hear which nodes were kept, by their places in the proposal."""


@dataclass
class LookupTree:
    """What was found behind matches, as branches of a tree: the same tokens behind the same ones stand once.

    Attributes:
        token_ids: parents before their children.
        parents: of each the place of the one that it follows, -1 for the text.
    """

    token_ids: list[int]
    parents: list[int]

    @classmethod
    def of(cls, branches: Iterable[list[int]], max_nodes: int, max_children: Callable[[int], int]) -> LookupTree:
        """Return as many of some branches as there is room for, the first ones first.

        There may be ``max_nodes`` in all; see `TreeShape.max_children` for how many may follow a token.

        Example:
            >>> LookupTree.of([[5, 6], [5, 7], [8]], 3, lambda depth: 2)
            LookupTree(token_ids=[5, 6, 7], parents=[-1, 0, 0])
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

    def only(self, places: list[int]) -> LookupTree:
        """Return some of the tokens, by their ascending places, each of which follows another one or the text."""
        new = {ROOT: ROOT} | {place: i for i, place in enumerate(places)}
        return LookupTree([self.token_ids[i] for i in places], [new[self.parents[i]] for i in places])
