"""Where proposals come from, and how many of them a step makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from cactus_decoding.core.types.proposals import LogitsToProbs, Proposal

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@runtime_checkable
class DraftLength(Protocol):
    """Chooses how many tokens to propose in each step.

    The loop tells it about each step: `begin_step`, then what was proposed, then what was kept. Drafters that see their
    own logits ask `should_continue` about each. It sees logits and never drawn tokens, and what was drawn stays
    proposed, so no choice it makes can change the distribution of what is emitted.

    Attributes:
        fixed: whether every step proposes the same number of tokens.
    """

    fixed: ClassVar[bool]

    @property
    def max_draft_tokens(self) -> int:
        """Upper limit of the proposals in any step; in a tree, of those that follow one another."""

    def begin_response(self) -> None:
        """Called before the first step of a response, which also reads the prompt."""

    def begin_step(self) -> int:
        """Return how many tokens the next step may propose, from 0 to ``max_draft_tokens``."""

    def should_continue(self, logits: Tensor) -> bool:
        """Return whether to propose another token after one that was drawn from these logits.

        Args:
            logits: as the draft model gave them, ``[vocabulary]``, before temperature and truncation.
        """

    def end_draft(self, num_drafted: int) -> None:
        """Called with the number of proposed tokens."""

    def end_step(self, num_accepted: int) -> None:
        """Called with the number of proposals that were kept."""


@runtime_checkable
class Drafter(Protocol):
    """Where proposals come from. A subclass need not have more than `propose`.

    A drafter may look at its own probabilities and at earlier tokens to choose *how many* tokens to propose, but it
    must never drop a token it has drawn for being unlikely: that changes the draft's distribution, and lossless is no
    longer lossless.

    Attributes:
        max_length: tokens that the draft's context window holds, if it has one.
        fixed_blocks: whether it proposes as many tokens as it is asked for, each drawn given those before it alone.
        grows_trees: whether it proposes a tree if the draft length of a response is a tree's shape.
        may_be_left_out: whether steps may do without it, so that it may first be asked in the middle of a response.
    """

    max_length: int | None = None
    fixed_blocks: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False
    may_be_left_out: ClassVar[bool] = False

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Called when a response begins.

        Args:
            target: a `BaseCachedModel`, for drafters that look into it; its cache may hold a beginning of the prompt.
            length: asked after each row whether to go on, by drafters that have rows.
        """
        return None

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose at most ``limit`` tokens to follow a sequence.

        From one call to the next the sequence only grows, by accepted proposals and one more token; a shorter one, or
        one that differs before that, starts a new response.
        """

    def reset(self) -> None:
        """Forget the last response."""
        return None

    def twin(self) -> Drafter:
        """Return a drafter with the same weights and its own cache.

        Raises:
            TypeError: for one that keeps more than a model's cache and cannot be doubled.
        """
        raise TypeError(f"a {type(self).__name__} cannot be shared by two responses at once")


def check_drafter(drafter: object) -> None:
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        name = repr(drafter) if isinstance(drafter, type) else f"a {type(drafter).__name__}"  # not all of a model
        raise TypeError(f"drafter must be a subclass of cactus_decoding.Drafter, but is {name}")
