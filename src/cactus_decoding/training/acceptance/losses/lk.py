"""LK: distillation where the draft is far off, acceptance where it is near."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from cactus_decoding.arguments.knobs import Knob
from cactus_decoding.training.acceptance.losses.base import Loss, Rows


@dataclass(frozen=True)
class Lk(Loss):
    r"""A mixture that each position weighs by its own acceptance, through which no gradient flows:

    .. math:: \lambda KL(q \| p) + (1 - \lambda)(1 - \alpha), \quad \lambda = e^{-\eta\,\alpha}

    Source: LK losses, arXiv 2602.23881.

    Attributes:
        eta: how fast the weight moves from KL to acceptance; 0 is KL alone.

    Example:
        >>> import torch
        >>> rows = Rows.of(torch.tensor([[[0.75, 0.25]]]).log(), torch.zeros(1, 1, 2), torch.tensor([[0]]))
        >>> round(Lk()(rows).item(), 4)
        0.2374
    """  # noqa: D415 - the sentence ends in its formula

    eta: Annotated[float, Knob("how fast the weight moves from KL to acceptance", ge=0, lt=math.inf)] = 3.0

    name = "lk"

    def __call__(self, rows: Rows) -> Tensor:
        """Return the loss at each position."""
        acceptance = rows.acceptance
        weight = (-self.eta * acceptance.detach()).exp()
        return weight * rows.kl + (1 - weight) * (1 - acceptance)
