"""The clamped ratio of one row without a sort, against the sorted table and against plain bisection."""

from __future__ import annotations

import math

import pytest
import torch
from support.exact_enumeration import make_rows, paired_rows
from torch import Tensor

from cactus_decoding.core.divergences.ratio_clamp import MAX_WIDTH, ClampedRow, RatioClamp, clamp_bounds

PAIRS = [*paired_rows(), make_rows(50, 40, seed=6)]
EVERY_ROW = [(target[i : i + 1], draft[i : i + 1]) for target, draft in PAIRS for i in range(len(target))]


def clamped(target: Tensor, draft: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(draft, target * low), target * high)


def kl(probs: Tensor, target: Tensor) -> float:
    return torch.where(probs > 0, probs * (probs.log() - target.log()), 0.0).sum().item()


def large_rows() -> tuple[Tensor, Tensor]:
    """Rows like a language model's, over 20,000 tokens."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, dtype=torch.float64, generator=generator) * 3
    noise = torch.randn(20_000, dtype=torch.float64, generator=generator)
    return logits.softmax(-1), (logits + noise).softmax(-1)


@pytest.mark.parametrize("width", [1e-9, 0.1, 1.0, 3.0, 30.0, 500.0])
def test_row_without_a_sort_emits_what_the_sorted_table_does(width: float) -> None:
    for target, draft in EVERY_ROW:
        low = RatioClamp(target, draft).lower(torch.full((1, 1), width, dtype=torch.float64))
        expected = clamped(target, draft, low, low * math.exp(width))
        given = clamped(target, draft, *clamp_bounds(target, draft, width=width))  # one row: without a sort
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)
        assert given.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("max_kl", [1e-6, 0.01, 0.3, 5.0])
def test_row_without_a_sort_spends_its_cap_and_no_more(max_kl: float) -> None:
    reached = 0
    for target, draft in EVERY_ROW:
        given = clamped(target, draft, *clamp_bounds(target, draft, max_kl=max_kl))
        assert given.sum().item() == pytest.approx(1, abs=1e-12)
        spent, limit = (
            kl(given, target),
            kl(clamped(target, draft, *clamp_bounds(target, draft, width=MAX_WIDTH)), target),
        )
        assert spent <= max_kl * (1 + 1e-9) + 1e-14
        assert spent >= min(limit, max_kl) - 1e-9 * max_kl - 1e-12
        reached += spent >= max_kl * (1 - 1e-9)
    assert reached


@pytest.mark.parametrize("width", [0.01, 1.0, 100.0])
def test_large_row_is_solved_with_and_without_the_tokens_that_the_target_excludes(width: float) -> None:
    target, draft = large_rows()
    cut = torch.where(target >= target.topk(50).values[-1], target, 0.0)
    for rows in ((target, draft), (cut / cut.sum(), draft)):
        low, high = clamp_bounds(*rows, width=width)
        assert clamped(*rows, low, high).sum().item() == pytest.approx(1, abs=1e-12)
        assert (high / low).item() == pytest.approx(math.exp(width), rel=1e-12)


def test_large_row_with_a_cap_spends_it() -> None:
    target, draft = large_rows()
    low, high = clamp_bounds(target, draft, max_kl=0.01)
    spent = kl(clamped(target, draft, low, high), target)
    assert 0.01 * (1 - 1e-9) <= spent <= 0.01 * (1 + 1e-11)


def test_a_solve_takes_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    # counted, not timed: each pass reads the whole row
    target, draft = large_rows()
    passes = 0
    dot = torch.dot

    def counting(left: Tensor, right: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return dot(left, right)

    monkeypatch.setattr(torch, "dot", counting)
    for width in (0.01, 0.1, 1.0, 3.0, 30.0):
        passes = 0
        ClampedRow(target, draft).lower(width)
        assert 2 <= passes <= 2 * 9
    passes = 0
    ClampedRow(target, draft).max_width(0.01, MAX_WIDTH)
    assert passes <= 120
