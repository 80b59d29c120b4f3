"""Bounds of the clamped ratio that are wrong where a draft's row has more than it can give: beside fixed tokens."""

from __future__ import annotations

import math

from torch import Tensor

from cactus_decoding.core.divergences.ratio_clamp import ClampedRow


class FloorTooHigh(ClampedRow):
    """Never looks below the least ratio, although h may have to: p sums to up to 2."""

    def __init__(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        super().__init__(target_probs, draft_probs)
        self._min_log_ratio = math.log(max(self.ratios.amin().item(), 1e-300))
