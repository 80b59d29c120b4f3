"""Block: what a whole step of proposals loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from cactus_decoding.arguments.knobs import Knob
from cactus_decoding.training.acceptance.losses.base import Loss, Rows, windows


@dataclass(frozen=True)
class Block(Loss):
    r"""The share of a step's K proposals that are lost, for a step that begins at each position.

    .. math:: 1 - \frac{1}{K} \sum_{k=1}^{K} \prod_{i=1}^{k} \alpha_{t+i-1}

    The expected tokens of such a step are 1 plus that sum; K = 1 is `TotalVariation`. A rejection counts for all that
    would have come after it, and proposals after the end of a text are lost whatever the draft does.

    Source: LK losses, arXiv 2602.23881, whose expected length of a block this is.

    Attributes:
        num_speculative_tokens: K.

    Example:
        >>> import torch
        >>> half = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).log().clamp(min=-100.0)
        >>> Block(num_speculative_tokens=2)(Rows.of(half, torch.zeros(1, 2, 2), torch.tensor([[0, 0]])))
        tensor([0.6250, 0.7500])
    """

    num_speculative_tokens: Annotated[int, Knob("proposals per step", ge=1)] = 6

    name = "block"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        kept = windows(rows.acceptance, rows.mask, self.num_speculative_tokens)
        return 1 - kept / self.num_speculative_tokens
