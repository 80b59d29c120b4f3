"""EARS: relax the test by a tolerance that grows with how unsure the target is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, RowRule, draft_probability_of, probability_of, with_rejected
from cactus_decoding.core.types import Verdict


@dataclass(frozen=True)
class Ears(RowRule):
    r"""Lower the uniform number of the lossless test by ``tolerance`` times the target's uncertainty 1 - max q.

    With :math:`t = tolerance \cdot (1 - \max q)`, n is accepted when :math:`u - t < q(n) / p(n)`, so that

    .. math:: h(n) = q(n) + t\, p(n) \ \text{ where } q(n) > 0 \text{ and } q(n) \ge floor \cdot p(n), \text{ else } 0

    and s = 1. What is emitted is min(p, h) + m (q - p)+ / TV(p, q), with m the mass that is rejected. Without a floor
    its total variation to the target is at most t, and exactly what acceptance gains: no rule accepts more at it.
    KL and likelihood ratios are not bounded.

    Source: Sun et al., "EARS" (arXiv 2512.13194). Its abstract was at hand, which says that the tolerance is in
    proportion to 1 - max q; how it enters the test is that of its authors' code (vllm-ascend, pull requests 5587 and
    7845). The code keeps u - t above 0.01, which is ``floor=0.01``; the later version above the least float, which is
    ``floor=0``. Without a tolerance the floor changes nothing.

    Example:
        >>> q, p = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
        >>> Ears(tolerance=0.4).judge(q, p, torch.tensor([0])).relaxed_prob.item()  # 0.5 + 0.4 (1 - 0.5) 0.9
        0.6799999952316285
    """

    tolerance: Annotated[float, Setting("how much an unsure target tolerates; 0 is lossless", "share", ge=0, le=1)]
    floor: Annotated[
        float, Setting("tokens of a smaller q/p are rejected; 0.01 in its first code", "ratio", ge=0, le=1)
    ] = 0.0

    name = "ears"
    title = "EARS"
    kind = "collaboration"
    summary = "Accept more where the target is unsure, by a tolerance in proportion to 1 - max q."
    presets = (
        Preset(
            "ears:tolerance=0.3",
            "Total variation to the target ≤ tolerance × (1 − max q); KL is unbounded.",
            "to compare",
        ),
    )
    families = (Family("ears", "EARS", lambda x: f"ears:tolerance={x!r}", 1e-3, 1.0),)
    never_stricter = True
    support_only = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor and self.tolerance:
            self._say(never_stricter=False)

    def _relaxed(self, q: Tensor, p: Tensor, greatest: Tensor) -> Tensor:
        floor = self.floor if self.tolerance else 0.0
        return torch.where((q > 0) & (q >= floor * p), q + self.tolerance * (1 - greatest).clamp(min=0) * p, 0.0)

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return q(n) + t p(n), or 0 where the target excludes n or falls below the floor, and s = 1."""
        q, p = probability_of(target_probs, token_ids), draft_probability_of(draft_probs, token_ids)
        return Verdict(self._relaxed(q, p, target_probs.amax(-1, keepdim=True).double()), torch.ones_like(q))

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return what is kept, with the mass that is rejected given back in the residual's shape."""
        q, p = target_probs.double(), draft_probs.double()
        kept = torch.minimum(p, self._relaxed(q, p, q.amax(-1, keepdim=True)))
        return with_rejected(kept, p, (q - p).clamp(min=0), q)
