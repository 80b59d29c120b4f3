"""The shapes that the parts of the package exchange.

Throughout, probabilities are float tensors with the vocabulary last, and leading dimensions are positions or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cactus_decoding.models.cached import CachedModel


class Verdict(NamedTuple):
    """The two numbers by which a rule decides on a drafted token.

    Attributes:
        relaxed_prob: h(n), the relaxed target's probability of the drafted token n, ``[..., tokens]``. With u uniform
            in [0, 1), n is accepted when ``u * draft_prob(n) < h(n)``.
        residual_scale: s, ``[..., tokens]``, from 0 to infinity. After a rejection the token is drawn in proportion to
            the positive part of ``s * recovery_target - draft_probs``; infinity means the recovery target itself.
    """

    relaxed_prob: Tensor
    residual_scale: Tensor


@runtime_checkable
class AcceptanceRule(Protocol):
    """A rule that accepts or rejects drafted tokens: pure, deterministic, picklable."""

    def __str__(self) -> str:
        """The text that `parse_rule` turns into this rule, such as ``cactus:delta=1.0``."""
        ...

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the two numbers for each of some tokens at each position, if it were the drafted one.

        Args:
            target_probs: the target's rows, ``[..., vocabulary]``.
            draft_probs: the draft's rows, ``[..., vocabulary]``, or None where the draft is deterministic.
            token_ids: the tokens asked about, ``[..., tokens]``: one for `verify`, all of them for `audit`.

        Returns:
            Numbers in float64, ``[..., tokens]``.
        """
        ...

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Return the rows that recovery starts from, ``[..., vocabulary]``: the target's own, for most rules."""
        ...

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        """Return h as rows, which are then what is emitted, if it does not depend on the drafted token; else None."""
        ...


class Verification(NamedTuple):
    """What `verify` decided for a batch of sequences.

    Attributes:
        num_accepted: accepted tokens of each sequence, ``[batch]``.
        next_token: the recovered token, or the bonus token where all were accepted, ``[batch]``.
        relaxed: true for accepted tokens that the lossless test would have rejected, ``[batch, num_draft_tokens]``.
    """

    num_accepted: Tensor
    next_token: Tensor
    relaxed: Tensor


class Proposal(NamedTuple):
    """Tokens that a drafter proposes.

    Attributes:
        token_ids: the proposed tokens, in order; there may be none.
        probs: the rows they were really drawn from, ``[len(token_ids), vocabulary]``; None if the choice was
            deterministic.
    """

    token_ids: list[int]
    probs: Tensor | None


LogitsToProbs = Callable[[Tensor, list[int]], Tensor]
"""``(logits [rows, vocabulary], token_ids) -> probs``: the last row follows all tokens, each before it one fewer."""


class Drafter(Protocol):
    """Where proposals come from.

    A drafter may look at its own rows and at earlier tokens to choose *how many* tokens to propose, but it must never
    drop a token it has drawn for being unlikely: that changes the law of the draft, and lossless is no longer lossless.
    """

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose at most ``limit`` tokens to follow a sequence.

        From one call to the next the sequence only grows, by accepted proposals and one more token; a shorter one, or
        one that differs before that, starts a new response.
        """
        ...


class Decision(NamedTuple):
    """What a `Verifier` decided on one step of one response.

    Attributes:
        num_accepted: accepted proposals.
        next_token: the recovered token, or the bonus token where all were accepted.
        relaxed: for each accepted proposal, whether the lossless test would have rejected it.
        nats: what each visited position cost (the accepted ones and the rejected one); None where nobody measured.
        fell_back: for each visited position, whether the budget could not afford the rule there.
    """

    num_accepted: int
    next_token: int
    relaxed: list[bool]
    nats: list[float] | None = None
    fell_back: Sequence[bool] = ()


class Verifier(Protocol):
    """Decides on the proposals of one response, step by step; it may remember what earlier steps have spent."""

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Decide on a proposal.

        Args:
            logits: the target's rows, ``[len(proposal.token_ids) + 1, vocabulary]``.
            token_ids: all the tokens, the proposal at their end.
            proposal: what the drafter proposes.
            generator: source of the random numbers, on the target's device.
        """
        ...


@runtime_checkable
class TargetObserver(Protocol):
    """A drafter that also looks at the target, such as one that exits early from it or reads its hidden states."""

    def attach(self, target: CachedModel) -> None:
        """Take the target of a response that is about to begin; its cache is empty."""
        ...


@runtime_checkable
class DraftLength(Protocol):
    """Chooses how many tokens to propose in each step.

    The loop tells it about each step: `begin_step`, then what was proposed, then what was kept. Drafters that see
    their own rows ask `goes_on` after each proposal. It sees rows and never drawn tokens, and what was drawn stays
    proposed, so no choice it makes can change the law of what is emitted.
    """

    @property
    def most(self) -> int:
        """Upper limit of the proposals in any step."""
        ...

    def begin_response(self) -> None:
        """Hear that the next step is the first of a response, and also reads the prompt."""
        ...

    def begin_step(self) -> int:
        """Return how many tokens the next step may propose, from 0 to ``most``."""
        ...

    def goes_on(self, logits: Tensor) -> bool:
        """Say whether to propose another token after one that was drawn from a row of the draft.

        Args:
            logits: the row as the draft gave it, ``[vocabulary]``: no temperature, no cuts.
        """
        ...

    def end_draft(self, num_drafted: int) -> None:
        """Hear how many tokens were proposed."""
        ...

    def end_step(self, num_accepted: int) -> None:
        """Hear how many of them were kept."""
        ...


@runtime_checkable
class RowByRow(Protocol):
    """A drafter that asks a `DraftLength` after each row whether to go on."""

    def heed(self, length: DraftLength) -> None:
        """Take the draft length of a response that is about to begin."""
        ...
