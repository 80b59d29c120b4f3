"""The same number of proposals in every step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.arguments.checks import check_integer


@dataclass(frozen=True)
class FixedLength:
    """Proposes ``most`` tokens in every step; 0 is plain sampling from the target.

    Raises:
        ValueError: for a negative number.

    Example:
        >>> FixedLength(6).begin_step()
        6
    """

    most: int

    def __post_init__(self) -> None:
        """Check the number."""
        check_integer("num_speculative_tokens", self.most, 0)

    def begin_response(self) -> None:
        """Nothing to learn."""

    def begin_step(self) -> int:
        """Return the number."""
        return self.most

    def goes_on(self, logits: Tensor) -> bool:
        """Go on, whatever the row."""
        return True

    def end_draft(self, num_drafted: int) -> None:
        """Nothing to learn."""

    def end_step(self, num_accepted: int) -> None:
        """Nothing to learn."""
