"""Fuzzy speculative decoding: leave a position to the draft where both distributions are close."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset
from cactus_decoding.core.rules.gate import BEFORE, Gated, jensen_shannon, kl, lumped, outside, total_variation


@dataclass(frozen=True)
class Fuzzy(Gated):
    r"""Emit the draft's probabilities where their divergence from the target's is below a threshold, and q elsewhere.

    .. math:: h = p \ \text{ if } D(p, q) < threshold, \text{ else } q, \qquad s = 1

    A threshold on ``tv`` bounds the total variation of what is emitted, and without truncation one on ``kl`` bounds its
    KL. Elsewhere the published code draws from q outright, which is ``closed=draw``. The default verifies losslessly
    there: it emits the same q, but accepts more, gives the tokens of lossless sampling at a threshold of 0, and works
    in vLLM.

    Source: "Fuzzy speculative decoding" (arXiv 2502.20704), and its code. The code's ``js_div``, here ``js_code``, is
    the mean of KL(m || p) and KL(m || q) for the middle m, in place of KL(p || m) and KL(q || m). The code compares
    probabilities from before temperature. To do the same, give the request's temperature as ``temperature``: D then
    bounds nothing. The code's ``top_k_*`` is ``top=50``: D can only be smaller, and no longer bounds what is emitted.

    Example:
        >>> import torch
        >>> rows = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
        >>> Fuzzy(threshold=0.3, divergence="tv").relaxed_target(*rows).tolist()
        [0.5, 0.5]
        >>> round(Fuzzy(threshold=0.5, divergence="tv").relaxed_target(*rows)[0].item(), 6)
        0.9
    """

    threshold: Annotated[
        float, Setting("divergence below which the draft is left alone; 0 is lossless", ge=0, lt=math.inf)
    ]
    divergence: Annotated[
        Literal["js", "js_code", "kl", "tv"],
        Setting("Jensen-Shannon, as published code computes it, KL(draft‖target), or total variation"),
    ] = "js"
    top: Annotated[int, Setting("D of the target's likeliest tokens, others as one; 0 for all", "tokens", ge=0)] = 0
    closed: Annotated[
        Literal["verify", "draw"],
        Setting("elsewhere verify losslessly, or draw from the target as published code does"),
    ] = "verify"
    temperature: Annotated[float, BEFORE] = 1.0

    name = "fuzzy"
    title = "Fuzzy"
    kind = "collaboration"
    summary = "Leave positions to the draft where both models' probabilities are close."
    presets = (
        Preset(
            "fuzzy:threshold=0.1,divergence=kl",
            "KL(emitted‖target) < threshold at every position, without truncation.",
            "to compare",
        ),
        Preset("fuzzy:threshold=0.1", "Jensen-Shannon divergence of what is emitted < threshold.", "to compare"),
    )
    families = (
        Family("fuzzy", "fuzzy, JS", lambda x: f"fuzzy:threshold={x!r}", 1e-3, 0.7),
        Family("fuzzy_kl", "fuzzy, KL", lambda x: f"fuzzy:threshold={x!r},divergence=kl", 1e-3, 20.0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._say(never_stricter=not self.draws, drafted_only=self.temperature == 1 and not self.top)

    @property
    def draws(self) -> bool:
        return self.closed == "draw"

    def _opens(self, q: Tensor, p: Tensor) -> Tensor:
        if self.top:
            q, p = lumped(q, p, self.top)
        if self.divergence == "tv":
            return total_variation(q, p) < self.threshold
        if self.divergence == "kl":
            return kl(p, q) + outside(q, p) < self.threshold
        if self.divergence == "js":
            return jensen_shannon(q, p) < self.threshold
        middle = (p + q) / 2
        return (kl(middle, p) + kl(middle, q)) / 2 < self.threshold
