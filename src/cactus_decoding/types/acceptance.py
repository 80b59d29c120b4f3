"""What a rule is, what it says of a drafted token, and what is decided by it."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


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


def judges_untempered(rule: AcceptanceRule) -> bool:
    """Say whether a rule judges the rows before temperature, as those for temperature 0 do."""
    return getattr(rule, "judges_untempered", False)
