"""What tree shapes have in common, how a tree grows in one step, and the tree that several matches make."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Protocol

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.lengths import StatelessLength
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import ROOT

if TYPE_CHECKING:
    from torch import Tensor


class ChildCounts(NamedTuple):
    """How many children a token gets: its likeliest tokens, and tokens drawn from the rest of the draft's row."""

    fixed: int
    drawn: int


class Growth(Protocol):
    """Grows the tree of one step, level by level.

    All of a level's children are settled before any of them is drawn, from the rows after that level and what was
    settled before. So neither how many children a token has nor which are fixed can depend on what is drawn there or
    later, which is what exactness asks for; see docs/proofs.md.
    """

    def reserve(self, num_looked_up: int) -> None:
        """Called before the first level with the number of tokens that the tree has in any case."""

    def split(self, logits: Tensor, looked_up: Sequence[Sequence[float]]) -> Sequence[ChildCounts]:
        """Return how many children the tokens get that have just been read, beside those that were looked up.

        ``logits`` are the draft's own, ``[tokens, vocabulary]``, with float32's least number for tokens that were
        looked up; ``looked_up`` says how likely the draft takes these to be.
        """

    def promising(self) -> list[int]:
        """Return which of the new children are to be read for children of their own; none ends the tree."""


class TreeShape(StatelessLength, ABC):
    """Chooses the tree that each step proposes: a draft length that also says how a tree grows."""

    name: ClassVar[str] = ""  # its spelling; a shape of one's own needs none
    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        return spell(self.name, self).replace(":", ",") if self.name else repr(self)

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
    def num_looked_up(self) -> int:
        """How many tokens of the next tree may be copied from where the text repeats itself, beside a draft model's."""
        return 0

    @property
    def is_even(self) -> bool:
        """Whether all tokens but the last have as many children, so that a position is judged alike in every step."""
        return False

    def begin_step(self) -> int:
        return self.max_draft_tokens

    @abstractmethod
    def grow(self, limit: int) -> Growth:
        """Begin the tree of a step, of up to ``limit`` levels."""

    def max_children(self, depth: int) -> int:
        """Return how many children a token may have that follows ``depth`` others of the tree."""
        return self.max_nodes


@dataclass
class LookupTree:
    """What was found after matches, as a tree in which equal tokens after the same one stand once."""

    token_ids: list[int]
    parents: list[int]

    @classmethod
    def of(cls, branches: Iterable[list[int]], max_nodes: int, max_children: Callable[[int], int]) -> LookupTree:
        """Return as many of some branches as there is room for, the first ones first."""
        found = cls([], [])
        for tokens in branches:
            if len(found.token_ids) >= max_nodes:
                break
            at = ROOT
            for depth, token in enumerate(tokens):
                behind = found.children_of(at)
                known = next((i for i in behind if found.token_ids[i] == token), None)
                if known is None:
                    if len(behind) >= max_children(depth) or len(found.token_ids) >= max_nodes:
                        break
                    known = len(found.token_ids)
                    found.token_ids.append(token)
                    found.parents.append(at)
                at = known
        return found

    def children_of(self, place: int | None) -> list[int]:
        """Return the places of what follows a token, or with -1 the text; nothing for None."""
        return [] if place is None else [i for i, parent in enumerate(self.parents) if parent == place]


MAX_NODES = 1024  # with more, a step's attention mask and its verification would take longer than any text can gain


@dataclass(frozen=True)
class StaticTree(TreeShape):
    """Proposes a tree: several tokens may follow the text, several more each of these, and so on.

    ``4.2.2.1`` lets 4 tokens follow the text, 2 each of them, 2 each of those and 1 each of the last: 44 in all, of
    which at most 4 are kept. ``drawn`` of the children of a token are drawn from the draft's probabilities, the others
    are its likeliest tokens; where too few tokens have any probability, as at temperature 0, the next likeliest take
    their place.

    Attributes:
        static: how many children the text has and each token after it, level by level: numbers with dots between.
        drawn: how many children of each are drawn, 0 or more; all, where there are fewer.
        lookup: how many tokens may be added, copied from where the text repeats itself; after these the draft proposes
            as many as after others.

    Raises:
        TypeError: for a number of drawn children that is none.
        ValueError: for an invalid shape, or one of more than 1024 tokens.

    Example:
        >>> shape = StaticTree("4.2.2.1")
        >>> shape.branching, shape.max_draft_tokens
        ((4, 2, 2, 1), 4)
    """

    static: Annotated[str, Setting("children of the text and of each token after it, level by level, such as 4.2.2.1")]
    drawn: Annotated[int, Setting("children of each that are drawn; the others are the likeliest", "tokens", ge=0)] = 1
    lookup: Annotated[int, Setting("copied from where the text repeats itself, on top", "tokens", ge=0, le=64)] = 0

    fixed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.static, str) or not re.fullmatch(r"[1-9]\d{0,3}(\.[1-9]\d{0,3}){0,99}", self.static):
            raise ValueError(
                f"static must be numbers from 1 with dots between such as '4.2.2.1', but is {short_repr(self.static)}"
            )
        check_fields(self)
        if self.max_nodes > MAX_NODES:
            raise ValueError(f"a tree may have at most {MAX_NODES} tokens, but {self} has {self.max_nodes}")

    def __str__(self) -> str:
        return spell("static", self).partition(":")[2]

    @property
    def max_draft_tokens(self) -> int:
        return len(self.branching)

    @property
    def branching(self) -> tuple[int, ...]:
        """How many children the text has, each token that follows it, and so on."""
        return tuple(int(each) for each in self.static.split("."))

    @property
    def is_even(self) -> bool:
        return len(set(self.branching)) == 1 and not self.lookup

    @property
    def num_looked_up(self) -> int:
        return self.lookup

    @property
    def max_nodes(self) -> int:
        """How many tokens it may have in all: most if all that is looked up is as near the text as can be."""
        level, found, left, total = 1, 1, self.lookup, 0
        for count in self.branching:
            found = min(left, found * count)
            left -= found
            level = level * count + found
            total += level
        return total

    @property
    def max_drawn(self) -> int:
        return min(self.drawn, max(self.branching))

    def max_children(self, depth: int) -> int:
        return self.branching[depth] if depth < len(self.branching) else 0

    def grow(self, limit: int) -> StaticGrowth:
        return StaticGrowth([ChildCounts(max(0, n - self.drawn), min(n, self.drawn)) for n in self.branching[:limit]])


class StaticGrowth:
    def __init__(self, splits: list[ChildCounts]) -> None:
        self._ahead = splits[::-1]
        self._new = 0

    def reserve(self, num_looked_up: int) -> None:
        pass

    def split(self, logits: Tensor, looked_up: Sequence[Sequence[float]]) -> list[ChildCounts]:
        fixed, drawn = self._ahead.pop()
        splits = []
        for each in looked_up:
            count = min(fixed + drawn, logits.shape[-1] - len(each))  # no more than there are tokens
            splits.append(ChildCounts(count - min(drawn, count), min(drawn, count)))
        self._new = sum(map(sum, splits)) + sum(map(len, looked_up))
        return splits

    def promising(self) -> list[int]:
        return [*range(self._new)] if self._ahead else []
