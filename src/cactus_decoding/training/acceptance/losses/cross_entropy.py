"""Cross-entropy: learn the texts themselves."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Loss, Rows


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """-log p(x) of the token that stands there, in nats; the target's rows play no part.

    Example:
        >>> import torch
        >>> rows = Rows.of(torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.0]]]), torch.tensor([[1]]))
        >>> CrossEntropy()(rows)
        tensor([0.6931])
    """

    name = "cross_entropy"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        return -rows.token_log_probs
