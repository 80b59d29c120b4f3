"""What draft lengths and tree shapes have in common, and how a tree grows in one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from cactus_decoding.arguments.later import Tensor
from cactus_decoding.arguments.values import check_integer
from cactus_decoding.types import Drafter, DraftLength

if TYPE_CHECKING:
    from cactus_decoding.models.base import BaseCachedModel

StepSeconds = Callable[[Callable[[], float]], tuple[float, float]]
"""Returns what a step without proposals takes by a clock, and one with one."""


class LearnsNothing:
    """Hears of the steps of responses, and goes on as before."""

    def begin_response(self) -> None:
        """Nothing to learn."""

    def should_continue(self, logits: Tensor) -> bool:
        """Go on, whatever the row."""
        return True

    def end_draft(self, num_drafted: int) -> None:
        """Nothing to learn."""

    def end_step(self, num_accepted: int) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class FixedLength(LearnsNothing):
    """Proposes ``max_draft_tokens`` tokens in every step; 0 is plain sampling from the target.

    Raises:
        ValueError: for a negative number.

    Example:
        >>> FixedLength(6).begin_step()
        6
    """

    max_draft_tokens: int

    fixed: ClassVar[bool] = True

    def __str__(self) -> str:
        """Return the number."""
        return str(self.max_draft_tokens)

    def __post_init__(self) -> None:
        checked = check_integer("num_speculative_tokens", self.max_draft_tokens, 0)
        object.__setattr__(self, "max_draft_tokens", checked)

    def begin_step(self) -> int:
        """Return the number."""
        return self.max_draft_tokens


class PerResponse(LearnsNothing, ABC):
    """Says how proposals are to be chosen, and leaves the choice to an object that each response has for itself.

    Its drafter must be one that may be left out of steps.
    """

    @abstractmethod
    def prepare(self, target: BaseCachedModel, drafter: Drafter, steps: StepSeconds) -> None:
        """Find out what responses on these models need to know, where that takes time; both are left empty.

        ``steps`` times a step without proposals and one with one, by a clock.
        """

    @abstractmethod
    def decided_by(self, target: BaseCachedModel, drafter: Drafter) -> dict[str, Any] | None:
        """Return what responses on these models are decided by, as plain values; None where that is not known yet."""

    @abstractmethod
    def start(self, target: BaseCachedModel, drafter: Drafter, num_tokens: int) -> tuple[DraftLength, Drafter]:
        """Return what chooses and what proposes in a response of up to so many tokens that begins on these models."""


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
