"""EARS: what it says of itself, against its published test, the bound on total variation, and other rules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cactus_decoding import audit
from cactus_decoding.core.audit import judge_every_token
from cactus_decoding.core.relaxed_logits import works_as_logits
from cactus_decoding.core.rules import Ears, Ensemble

EXACT = 1e-12
GENERATOR = torch.Generator().manual_seed(0)
TARGET = torch.randn(200, 7, generator=GENERATOR, dtype=torch.float64).mul(2).softmax(-1)
DRAFT = (TARGET.log() + torch.randn(200, 7, generator=GENERATOR, dtype=torch.float64)).softmax(-1)
UNSURE = 1 - TARGET.amax(-1)


def published(tolerance: float, floor: float, uncertainty: Tensor = UNSURE) -> Tensor:
    """Return how likely the code's test passes: max(u - t, floor) <= q / p, with u in equal steps."""
    uniforms = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    passed = torch.zeros_like(TARGET)
    for u in uniforms.split(1000):
        bar = (u - tolerance * uncertainty[:, None]).clamp(min=floor)  # [positions, numbers]
        passed += ((TARGET / DRAFT).unsqueeze(-1) >= bar.unsqueeze(1)).sum(-1) / 20_000
    return passed


@pytest.mark.parametrize("floor", [0.0, 0.01, 0.3])
def test_it_accepts_what_the_published_test_accepts(floor: float) -> None:
    kept = (judge_every_token(Ears(0.3, floor), TARGET, DRAFT).relaxed_prob / DRAFT).clamp(max=1)
    assert (kept - published(0.3, floor)).abs().max() < 1e-4  # of 20,000 steps
    wrong = published(0.3, floor, torch.full_like(UNSURE, UNSURE.mean()))  # the same tolerance everywhere
    assert (kept - wrong).abs().max() > 0.05


@pytest.mark.parametrize("tolerance", [0.05, 0.3, 1.0])
def test_acceptance_gains_what_total_variation_is_spent_and_no_more_than_is_tolerated(tolerance: float) -> None:
    spent, lossless = audit(Ears(tolerance), TARGET, DRAFT), audit("lossless", TARGET, DRAFT)
    torch.testing.assert_close(spent.acceptance - lossless.acceptance, spent.tv, rtol=0, atol=EXACT)
    assert (spent.tv <= tolerance * UNSURE + EXACT).all()
    assert (spent.tv > 0.9 * tolerance * UNSURE).any()  # the bound is nearly reached


def test_an_absurd_token_is_emitted_as_often_as_it_is_tolerated() -> None:
    target, draft = torch.tensor([[0.5, 0.5 - 1e-9, 1e-9], [0.2, 0.2, 0.6]], dtype=torch.float64)
    emitted = audit(Ears(0.3), target, draft)
    assert emitted.output_probs[2].item() == pytest.approx(0.3 * 0.5 * 0.6, rel=1e-6)
    assert emitted.max_log_ratio > 18


def test_it_is_no_ensemble() -> None:
    mixed = Ensemble(0.4).relaxed_target(TARGET, DRAFT)
    assert (Ears(0.4).relaxed_target(TARGET, DRAFT) - mixed).abs().max() > 0.01


def test_a_floor_makes_it_stricter_than_lossless_and_it_says_so() -> None:
    floored = audit(Ears(0.01, 0.5), TARGET, DRAFT).acceptance
    assert (floored < audit("lossless", TARGET, DRAFT).acceptance - 0.01).any()
    assert not Ears(0.3, 0.5).never_stricter
    assert not works_as_logits(Ears(0.3, 0.5))
    assert works_as_logits(Ears(0.3))
