"""Speculative cascades: leave a position to the draft, or verify it, by how sure the models are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, Preset, round_to
from cactus_decoding.core.rules.gate import BEFORE, Gated, total_variation


@dataclass(frozen=True)
class Cascade(Gated):
    r"""Emit the draft's probabilities where the draft is sure enough, and the target's elsewhere.

    h is the draft's distribution p where

    .. math:: \max p \ge 1 - \alpha \ (\text{chow}), \quad \max p \ge \max q - \alpha \ (\text{diff}), \quad
        \max p \ge \max q - \alpha\, TV(p, q) \ (\text{opt})

    and q elsewhere, with s = 1. Where the draft is left alone nothing is bounded, and a draft can be sure and wrong.
    What the target excludes of p is rejected, and given back to tokens that the target favours.

    Source: Narasimhan et al., "Faster cascades via speculative decoding", ICLR 2025 (arXiv 2405.19261), equations 2, 5
    and 10 in the numbering of their notebook. The notebook compares distributions from before temperature: to do the
    same, give the request's temperature as ``temperature``. With ``diff`` any alpha below -1 is lossless.

    Example:
        >>> import torch
        >>> rows = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
        >>> Cascade(alpha=0.2, defer="chow").relaxed_target(*rows).tolist()
        [0.8999999761581421, 0.10000000149011612]
        >>> Cascade(alpha=-0.5, defer="diff").relaxed_target(*rows).tolist()
        [0.5, 0.5]
    """

    alpha: Annotated[float, Setting("the larger, the more is left to the draft; -2 is lossless", ge=-2, le=100)]
    defer: Annotated[
        Literal["opt", "diff", "chow"],
        Setting("compare the draft's greatest probability with the target's less alpha·TV or alpha, or with 1 − alpha"),
    ] = "opt"
    temperature: Annotated[float, BEFORE] = 1.0

    name = "cascade"
    title = "Speculative cascade"
    kind = "collaboration"
    summary = "Leave positions to the draft where it is sure enough beside the target."
    presets = (Preset("cascade:alpha=0.1", "None: the draft's distribution where it is left alone.", "to compare"),)
    families = (
        Family("cascade_opt", "cascade, OPT", lambda x: f"cascade:alpha={round_to(x - 1)!r}", 0.05, 30.0),
        Family("cascade_diff", "cascade, Diff", lambda x: f"cascade:alpha={round_to(x - 1)!r},defer=diff", 0.02, 2.0),
        Family("cascade_chow", "cascade, Chow", lambda x: f"cascade:alpha={x!r},defer=chow", 1e-3, 1.0),
    )

    def _opens(self, q: Tensor, p: Tensor) -> Tensor:
        sure, least = p.amax(-1), q.amax(-1)
        if self.defer == "chow":
            return sure >= 1 - self.alpha
        return sure >= least - self.alpha * (total_variation(q, p) if self.defer == "opt" else 1.0)
