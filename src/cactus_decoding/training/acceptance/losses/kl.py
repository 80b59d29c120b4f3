"""KL divergence from the draft's row to the target's: distillation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Loss, Rows


@dataclass(frozen=True)
class Kl(Loss):
    """KL(q || p) = sum q log(q / p), in nats.

    Source: Zhou et al., DistillSpec, arXiv 2310.08461.

    Example:
        >>> import torch
        >>> rows = Rows.of(torch.tensor([[[0.75, 0.25]]]).log(), torch.zeros(1, 1, 2), torch.tensor([[0]]))
        >>> round(Kl()(rows).item(), 4)
        0.1308
    """

    name = "kl"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        return rows.kl
