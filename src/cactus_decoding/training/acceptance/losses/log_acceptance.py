"""Log-acceptance: the surprise of lossless verification's accepting."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cactus_decoding.training.acceptance.losses.base import Loss, Rows


@dataclass(frozen=True)
class LogAcceptance(Loss):
    """-log alpha with alpha = sum min(p, q); its sum over positions is that of a whole text's being accepted.

    Source: LK losses, arXiv 2602.23881.

    Example:
        >>> import torch
        >>> rows = Rows.of(torch.tensor([[[0.75, 0.25]]]).log(), torch.zeros(1, 1, 2), torch.tensor([[0]]))
        >>> round(LogAcceptance()(rows).item(), 4)
        0.2877
    """

    name = "log_acceptance"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        return -rows.acceptance.clamp(min=1e-30).log()
