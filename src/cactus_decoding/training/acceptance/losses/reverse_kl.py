"""KL divergence the other way round: the draft keeps to what the target is sure of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Loss, Rows


@dataclass(frozen=True)
class ReverseKl(Loss):
    """KL(p || q) = sum p log(p / q), in nats.

    Source: Zhou et al., DistillSpec, arXiv 2310.08461.

    Example:
        >>> import torch
        >>> rows = Rows.of(torch.tensor([[[0.75, 0.25]]]).log(), torch.zeros(1, 1, 2), torch.tensor([[0]]))
        >>> round(ReverseKl()(rows).item(), 4)
        0.1438
    """

    name = "reverse_kl"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        return (rows.draft_probs * (rows.draft_log_probs - rows.target_log_probs)).sum(-1)
