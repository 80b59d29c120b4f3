"""The share that a relaxed rule rejects, to train a draft for that rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.divergences.ratio_clamp import clamp_bounds
from cactus_decoding.core.rules import Cactus, ClampedRatio, as_rule, parse_rule
from cactus_decoding.lab.training.acceptance.losses.base import Loss, Rows

_WEIGHT = "kl_weight="
_FLAT = 1e-30


@dataclass(frozen=True)
class Relaxed(Loss):
    """1 - acceptance under a rule, the clamped ratio or Cactus, plus ``kl_weight`` times KL(q || p).

    For the clamped ratio, the acceptance is sum min(p, h) = sum min(p, e^hi q), where hi depends on p as in the rule;
    for Cactus, sum min(p, g(q)). A relaxed rule accepts many drafts always: the KL term chooses the one nearest to the
    target, and gives a gradient where the acceptance has none. A weight of 0 leaves the optimum open.

    Raises `TypeError`, `ValueError` for another rule, or a weight out of range.

    Source: our derivation (see the docs on the theory).
    """

    rule: Cactus | ClampedRatio
    kl_weight: Annotated[float, Field(ge=0, lt=math.inf, description="of the KL term")] = 0.1

    name = "relaxed"

    def __post_init__(self) -> None:
        rule = as_rule(self.rule)
        if not isinstance(rule, (Cactus, ClampedRatio)):
            named = short_repr(str(rule))
            raise ValueError(f"a draft is trained for the rules cactus and clamped, but not for {named}")
        object.__setattr__(self, "rule", rule)
        super().__post_init__()

    @classmethod
    def parse(cls, rule: str, text: str) -> Relaxed:
        if not rule.strip():
            raise ValueError(f"{short_repr(text)} lacks a rule; write for example 'relaxed:clamped:width=3'")
        head, colon, rest = rule.partition(":")
        parts = [part.strip() for part in rest.split(",")]
        weights = [part.removeprefix(_WEIGHT) for part in parts if part.startswith(_WEIGHT)]
        others = ",".join(part for part in parts if not part.startswith(_WEIGHT))
        if len(weights) > 1:
            raise ValueError(f"kl_weight is given twice in {short_repr(text)}")
        try:
            given = {"kl_weight": float(weights[0])} if weights else {}
        except ValueError:
            wrong = f"{short_repr(weights[0])} in {short_repr(text)}"
            raise ValueError(f"kl_weight must be a number, but is {wrong}") from None
        return cls(parse_rule(f"{head}{colon}{others}"), **given)  # type: ignore[arg-type]  # checked there

    def __call__(self, rows: Rows) -> Tensor:
        return 1 - self.acceptance(rows) + self.kl_weight * rows.kl

    def acceptance(self, rows: Rows) -> Tensor:
        q, p = rows.target_probs, rows.draft_probs
        if isinstance(self.rule, Cactus):
            every = torch.arange(q.shape[-1], device=q.device).expand_as(q)
            relaxed = self.rule.judge(q, None, every).relaxed_prob.to(q.dtype)
        else:
            relaxed = (upper_bound(self.rule, q, p) * q.double()).clamp(max=1.0).to(q.dtype)
        return torch.minimum(p, relaxed).sum(-1)

    def __str__(self) -> str:
        rule = str(self.rule)
        if self.kl_weight == 0.1:
            return f"{self.name}:{rule}"
        return f"{self.name}:{rule}{',' if ':' in rule else ':'}{_WEIGHT}{float(self.kl_weight)!r}"


def upper_bound(rule: ClampedRatio, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Return e^hi at each position, ``[..., 1]`` in float64, with its derivative in p.

    The bounds solve :math:`F(e^{lo}, e^{hi}, p) = 0`: h sums to 1, and hi - lo = width or KL(h || q) = max_kl. One step
    of Newton's method from the solution changes no value and, by the implicit function theorem, has the derivative.
    """
    q, p = target_probs.detach().double(), draft_probs.double()
    low, high = clamp_bounds(q, p.detach(), width=rule.width, max_kl=rule.max_kl)
    below, above = p.detach() < q * low, p.detach() > q * high
    under, over = (torch.where(side, q, 0.0).sum(-1, keepdim=True) for side in (below, above))
    between = torch.where(below | above, 0.0, p)
    excess = low * under + between.sum(-1, keepdim=True) + high * over - 1  # of the sum of h
    if rule.width is not None:
        stretch = math.exp(rule.width)
        slope, residual = under / stretch + over, excess  # d(sum of h) / d e^hi, as e^lo follows it
    else:
        logs = torch.where(between > 0, between / q.clamp(min=1e-300), 1.0).log()
        cost = low * low.log() * under + (between * logs).sum(-1, keepdim=True) + high * high.log() * over
        slope = over * (high.log() - low.log())  # after eliminating e^lo
        residual = cost - rule.max_kl - (low.log() + 1) * excess  # type: ignore[operator]
    # where next to nothing is clamped, the bound moves no acceptance
    step = torch.where(slope > _FLAT, residual / slope.clamp(min=_FLAT), 0.0)
    return high - (step - step.detach())
