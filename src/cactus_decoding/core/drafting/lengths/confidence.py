"""Stop proposing once the draft is unsure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.lengths.base import FixedLength
from cactus_decoding.core.spelling import spell


@dataclass(frozen=True)
class ConfidenceStop(FixedLength):
    """Stops after a token whose row had no token of probability ``threshold`` or more.

    The probability is the draft's own, before temperature and cuts, so that a threshold means the same under all of
    them. The token drawn from the unsure row stays proposed: dropping it for being unlikely would change the law of the
    draft. Drafters without rows count as sure.

    By ``unsure=discard`` the draft ends before that row: no token is drawn from it, so none is dropped, and the target
    writes that one, as in the fallback of the Big Little decoder (arXiv 2302.07863).

    Args:
        max_draft_tokens: proposals per step at most, 0 or more.
        threshold: in [0, 1]; 0 never stops.
        unsure: whether to ``propose`` a token from the unsure row too, or ``discard`` the row.

    Raises:
        ValueError: for a parameter out of range.

    Example:
        >>> import torch
        >>> ConfidenceStop(threshold=0.6).should_continue(torch.tensor([0.5, 0.5]).log())
        False
    """

    max_draft_tokens: Annotated[int, Field(ge=0, description="proposals per step at most"), Setting("tokens")] = 10
    threshold: Annotated[float, Field(ge=0, le=1, description="a likelier token goes on")] = 0.4
    unsure: Annotated[Literal["propose", "discard"], Field(description="what to do with the row that is not sure")] = (
        "propose"
    )

    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return the text that `as_draft_length` turns into this one."""
        return spell("confidence", self)

    def __post_init__(self) -> None:
        check_fields(self)

    def should_continue(self, logits: Tensor) -> bool:
        """Say whether the row's most likely token reaches the threshold."""
        return confidence(logits) >= self.threshold


def confidence(logits: Tensor) -> float:
    """Return the probability of a row's most likely token."""
    return float(logits.float().softmax(-1).max())
