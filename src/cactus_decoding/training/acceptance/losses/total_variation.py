"""Total variation: what lossless verification rejects."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Loss, Rows


@dataclass(frozen=True)
class TotalVariation(Loss):
    """1 - alpha with alpha = sum min(p, q): the probability that lossless verification rejects.

    Source: Leviathan et al., arXiv 2211.17192; as a loss, Zhou et al., DistillSpec, arXiv 2310.08461.

    Example:
        >>> import torch
        >>> rows = Rows.of(torch.tensor([[[0.75, 0.25]]]).log(), torch.zeros(1, 1, 2), torch.tensor([[0]]))
        >>> TotalVariation()(rows)
        tensor([0.2500])
    """

    name = "total_variation"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        return 1 - rows.acceptance
