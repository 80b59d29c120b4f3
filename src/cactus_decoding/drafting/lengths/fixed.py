"""The same number of proposals in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cactus_decoding.arguments.values import check_integer
from cactus_decoding.drafting.lengths.base import LearnsNothing


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
