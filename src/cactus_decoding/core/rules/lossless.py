"""Lossless speculative sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.core.rules.base import Preset, RowRule, probability_of
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class Lossless(RowRule):
    """Speculative sampling that emits exactly the target's distribution: h = q, s = 1.

    Sources: Leviathan et al. (arXiv 2211.17192); Chen et al. (arXiv 2302.01318).

    Example:
        >>> str(Lossless())
        'lossless'
    """

    name = "lossless"
    title = "Lossless"
    kind = "exact"
    summary = "Accept as much as can be accepted without changing anything."
    presets = (Preset("lossless", "Exact: emits the target's own distribution.", "first"),)
    never_stricter = True
    support_only = True
    drafted_only = True

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        q = probability_of(target_probs, token_ids)
        return Verdict(q, torch.ones_like(q))

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return target_probs
