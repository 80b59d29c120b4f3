"""KL gate: leave a position to the draft where it covers what the target wants, unless the target is sure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset
from cactus_decoding.core.rules.gate import Gated, kl


@dataclass(frozen=True)
class KLGate(Gated):
    r"""Emit the draft's probabilities where KL(q || p) is below a threshold and the target is unsure, and q elsewhere.

    .. math:: h = p \ \text{ if } KL(q \| p) < threshold,\ \max q \le confidence, \text{ else } q, \qquad s = 1

    This KL is the target's from the draft: it does not bound KL(p || q), the cost of what is emitted where the gate is
    open. By Pinsker, the total variation there is below sqrt(threshold / 2). A deterministic draft never opens the
    gate.

    Source: Sun et al. (arXiv 2601.04766) and their code. It runs at temperature 0, compares both models' distributions
    from before temperature, and also accepts the target's most likely token. Here the gate stands where tokens are
    drawn.

    Example:
        >>> import torch
        >>> rows = torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])
        >>> [KLGate(threshold).relaxed_target(*rows)[0].item() for threshold in (0.1, 0.2)]
        [0.5, 0.75]
    """

    threshold: Annotated[
        float, Setting("KL(target‖draft) below which the draft is left alone; 0 is lossless", "nats", ge=0, lt=math.inf)
    ]
    confidence: Annotated[
        float, Setting("a target that gives a token more than this is followed", "probability", ge=0, le=1)
    ] = 0.9

    name = "kl_gate"
    title = "KL gate"
    kind = "collaboration"
    summary = "Leave positions to the draft where it covers the target and the target is unsure."
    presets = (
        Preset(
            "kl_gate:threshold=0.1",
            "Total variation < √(threshold/2) at every position; KL(emitted‖target) is unbounded.",
            "to compare",
        ),
    )
    families = (Family("kl_gate", "KL gate", lambda x: f"kl_gate:threshold={x!r}", 1e-3, 50.0),)
    drafted_only = True

    def _opens(self, q: Tensor, p: Tensor) -> Tensor:
        return (kl(q, p) < self.threshold) & (q.amax(-1) <= self.confidence)
