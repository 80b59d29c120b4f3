"""Cactus: lift the drafted token as far as a divergence budget allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.divergences.f_divergences import DIVERGENCES, lift_by_expansion, lift_exactly
from cactus_decoding.core.rules.base import Family, LiftRule, Preset


@dataclass(frozen=True)
class Cactus(LiftRule):
    r"""Constrained acceptance: h maximises h(n) subject to D_f(h || q) <= delta, given the drafted token n.

    h(n) = g and h(i) = s q(i) elsewhere, with s = (1 - g) / (1 - q(n)). The paper's closed form for KL is

    .. math:: g = \min(q(n) + \sqrt{2 \delta q(n) (1 - q(n))},\ 1)

    which keeps KL(h || q) <= delta while g <= 1/2 and can overspend above: up to log(1 + 2 delta) where g is clipped
    to 1. ``solver="exact"`` never overspends. Either way the bound holds *given n*: the emitted distribution, averaged
    over the draft, can be further away (see `cactus_decoding.audit`). Without top-k or top-p truncation, tokens that
    the target finds absurd are lifted too.

    Source: Hao and Mou, "Cactus", ICLR 2026 (arXiv 2604.04987).

    Raises:
        ValueError: for a parameter out of range, or the expansion of a divergence that has none.

    Example:
        >>> rule = Cactus(delta=0.02)
        >>> rule.judge(torch.tensor([0.5, 0.5]), None, torch.tensor([0])).relaxed_prob.item()
        0.6
    """

    delta: Annotated[float, Setting("budget, given the drafted token; 0 is lossless", "nats", ge=0, lt=math.inf)]
    solver: Annotated[
        Literal["taylor", "exact"], Setting("the paper's second-order closed form, or the root, which never overspends")
    ] = "taylor"
    divergence: Annotated[
        Literal["kl", "reverse_kl", "chi_square", "squared_hellinger", "total_variation", "jensen_shannon"],
        Setting("what delta bounds; ``total_variation`` needs ``solver=exact``"),
    ] = "kl"
    max_ratio: Annotated[float, Setting("no token is lifted to more than this times its probability", ge=1)] = math.inf

    name = "cactus"
    title = "Cactus"
    kind = "truncation"
    summary = "Lift the drafted token as far as a divergence budget allows."
    presets = (
        Preset(
            "cactus:delta=0.5",
            "Given the drafted token, KL(h‖target) ≤ delta while h(n) ≤ 1/2; above that it can overspend, up to "
            "log(1 + 2·delta), if delta is below 1.257. Not a bound on what is emitted on average.",
            "to reproduce the paper; with deterministic drafts",
        ),
        Preset(
            "cactus:delta=0.5,solver=exact",
            "Given the drafted token, KL(h‖target) ≤ delta, never overspent. "
            "Not a bound on what is emitted on average.",
            "with deterministic drafts, where delta then bounds what is emitted",
        ),
    )
    families = (
        Family("cactus", "Cactus, closed form", lambda x: f"cactus:delta={x!r}", 1e-4, 1e3),
        Family("cactus_exact", "Cactus, exact solver", lambda x: f"cactus:delta={x!r},solver=exact", 1e-4, 30.0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver == "taylor" and DIVERGENCES[self.divergence].curvature is None:
            raise ValueError(f"divergence {self.divergence!r} has no second-order expansion: solver must be 'exact'")

    def lift(self, target_prob: Tensor) -> Tensor:
        solved = lift_exactly if self.solver == "exact" else lift_by_expansion
        g = solved(self.divergence, target_prob, self.delta)
        return torch.minimum(g, self.max_ratio * target_prob) if self.max_ratio < math.inf else g

    def min_relaxed_prob(self, target_probs: Tensor) -> Tensor:
        """Return a lower bound of g: the closed form, which keeps the budget while it is at most 1/2."""
        if self.solver != "exact" or self.divergence != "kl" or self.max_ratio < math.inf:
            return target_probs
        closed = lift_by_expansion("kl", target_probs, self.delta).clamp(max=0.5)
        return torch.maximum(target_probs, closed * (1 - 1e-9))  # the root is found to a part in 10^11
