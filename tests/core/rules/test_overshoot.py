"""How much likelier a token may become than the target says: the bounds of the table in docs/rules/index.md."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cactus_decoding import audit, parse_rule

GENERATOR = torch.Generator().manual_seed(0)
TARGET = torch.randn(300, 6, generator=GENERATOR, dtype=torch.float64).mul(2).softmax(-1)
DRAFT = (TARGET.log() + torch.randn(300, 6, generator=GENERATOR, dtype=torch.float64)).softmax(-1)
MOST, ENTROPY = TARGET.amax(-1, keepdim=True), torch.special.entr(TARGET).sum(-1, keepdim=True)
BOUNDS: dict[str, Callable[[Tensor, Tensor], Tensor | float]] = {
    "typical:threshold=0.2,alpha=0.5,recovery=sample": lambda q, p: (
        1 / torch.minimum(torch.tensor(0.2), 0.5 * (-ENTROPY).exp())
    ),
    "token_cascade:alpha=0.6": lambda q, p: 1 / (0.4 * MOST),
    "clamped:width=0.7": lambda q, p: math.exp(0.7),
    "ensemble:weight=0.4": lambda q, p: 1 + 0.4 * p / q,
    "ears:tolerance=0.6": lambda q, p: 1 + 0.6 * (1 - MOST) * p / q,
}


@pytest.mark.parametrize("spelling", BOUNDS)
def test_no_token_becomes_likelier_than_the_bound_says_and_some_come_near(spelling: str) -> None:
    overshoot = audit(parse_rule(spelling), TARGET, DRAFT).output_probs / TARGET
    share = overshoot / BOUNDS[spelling](TARGET, DRAFT)
    assert share.max() <= 1 + 1e-12
    assert share.max() > 0.5


def test_rules_without_a_bound_pass_any() -> None:
    for rule in ("cactus:delta=0.1", "cascade:alpha=0.1", "top_k:k=5"):
        assert (audit(rule, TARGET, DRAFT).output_probs / TARGET).max() > 10
