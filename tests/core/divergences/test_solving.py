"""Roots, ratios and clamps: found by halving, by order and without a sort."""

from __future__ import annotations

import math

import pytest
import torch
from support.wrong_bounds import FloorTooHigh
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.ratio_clamp import MAX_WIDTH, ClampedRow, RatioClamp, clamp_bounds, find_root
from cactus_decoding.core.divergences.rows import count_up_to

GENERATOR_SEEDS = range(3)


def entries_of(kind: str, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(300, dtype=torch.float64, generator=generator)
    match kind:
        case "even":
            return uniform
        case "crowded":
            return 1 - uniform * 1e-9
        case "equal":
            return torch.full((300,), 0.5, dtype=torch.float64)
        case "infinite":
            return torch.cat([uniform, torch.tensor([torch.inf])])
        case _:
            return torch.exp(40 * uniform - 30)


@pytest.mark.parametrize("kind", ["even", "crowded", "equal", "infinite", "far apart"])
@pytest.mark.parametrize("seed", GENERATOR_SEEDS)
def test_counts_are_those_of_halving(kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    entries = entries_of(kind, generator).sort().values.unsqueeze(0)
    values = torch.exp(4 * torch.randn(9_000, dtype=torch.float64, generator=generator))
    # ties with entries, and the floats next to them, decide which side of a bin a value is on
    near = entries[0].repeat(3)
    near[300:600] = torch.nextafter(near[300:600], torch.tensor(torch.inf, dtype=torch.float64))
    near[600:900] = torch.nextafter(near[600:900], torch.tensor(-torch.inf, dtype=torch.float64))
    values = torch.cat([values, near, torch.tensor([0.0, torch.inf], dtype=torch.float64)]).unsqueeze(0)
    assert torch.equal(count_up_to(entries, values), torch.searchsorted(entries, values, right=True))


def test_audit_of_a_large_vocabulary_equals_that_of_small_ones() -> None:
    # two halves of a row that never meet have the audits of their own rows: grid against halving
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2_000, dtype=torch.float64, generator=generator) * 3
    target = logits.softmax(-1)
    draft = (logits + torch.randn(2_000, dtype=torch.float64, generator=generator)).softmax(-1)
    padding = torch.zeros(8_000, dtype=torch.float64)
    for rule in ("cactus:delta=0.001", "cactus:delta=0.5"):
        small = audit(rule, target, draft)
        large = audit(rule, torch.cat([padding, target]), torch.cat([padding, draft]))
        torch.testing.assert_close(large.output_probs[8_000:], small.output_probs, rtol=0, atol=1e-14)
        torch.testing.assert_close(large.kl, small.kl, rtol=0, atol=1e-13)


@pytest.mark.parametrize("root", [-3.0, 0.0, 1e-9, 0.7, 5.0, 9.0])
def test_find_root_closes_the_bracket_or_ends_where_the_root_is_beyond(root: float) -> None:
    for steepness in (1e-3, 1.0, 1e3):
        low, high = find_root(
            lambda x, s=steepness: (
                (math.sinh(s * (x - root)), False) if s < 1e2 else (math.copysign(math.inf, x - root), False)
            ),
            0.0,
            7.0,
            3.0,
            1.0,
        )
        expected = min(max(root, 0.0), 7.0)
        assert low == pytest.approx(expected, abs=1e-12)
        assert high == pytest.approx(expected, abs=1e-12)
        assert low <= high


def clamped(target: Tensor, draft: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(draft, target * low), target * high)


def kl(probs: Tensor, target: Tensor) -> float:
    return torch.where(probs > 0, probs * (probs.log() - target.log()), 0.0).sum().item()


def large_rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, dtype=torch.float64, generator=generator) * 3
    noise = torch.randn(20_000, dtype=torch.float64, generator=generator)
    return logits.softmax(-1), (logits + noise).softmax(-1)


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


def rows_beside_fixed_tokens(vocabulary: int, outside: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows within the target's support: p has what is not ``outside``, and 1 more on tokens proposed anyway."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = (3 * torch.randn(2, vocabulary, dtype=torch.float64, generator=generator)).softmax(-1)
    fixed = target.topk(1 + seed % 3).indices
    draft = draft.index_fill(0, fixed, 0.0)
    draft = draft * ((1 - outside) / draft.sum())
    return target, draft.index_copy(0, fixed, target[fixed] / target[fixed].sum())


def check_solved_alike(vocabulary: int, kind: type[ClampedRow] = ClampedRow) -> None:
    """Check both ways to solve a row, by passes and by look-ups, against each other and against what h must be."""
    for seed, outside in enumerate((0.0, 0.2, 0.5, 0.51, 0.7, 0.99, 1 - 1e-9)):
        target, draft = rows_beside_fixed_tokens(vocabulary, outside, seed)
        alone, many = kind(target, draft), RatioClamp(target[None], draft[None])
        for width in (1e-6, 0.1, 1.0, 3.0, 12.0, 100.0, MAX_WIDTH):
            low = torch.tensor([alone.lower(width)], dtype=torch.float64)
            among = many.lower(torch.tensor([[width]], dtype=torch.float64))[0]
            h, other = (clamped(target, draft, each, each * math.exp(width)) for each in (low.exp(), among))
            assert h.sum().item() == pytest.approx(1, abs=1e-12)
            torch.testing.assert_close(h, other, rtol=0, atol=1e-12)
            assert -width <= low.item() <= 0
        for cap in (1e-6, 0.01, 1.0):
            low, width = alone.max_width(cap, MAX_WIDTH)
            bounds = torch.tensor([low, low + width], dtype=torch.float64).exp()
            spent = kl(clamped(target, draft, *bounds), target)
            most = many.max_width(cap)
            among = many.lower(most)
            other = kl(clamped(target, draft, among[0], (among * most.exp())[0]), target)
            assert spent == pytest.approx(other, abs=1e-12 + 2e-11 * cap)
            assert spent <= cap * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("vocabulary", [5, 40, 5000])
def test_rows_with_more_than_they_can_give_are_solved_alike_by_passes_and_by_look_ups(vocabulary: int) -> None:
    check_solved_alike(vocabulary)


def test_a_floor_that_such_rows_must_go_below_is_noticed() -> None:
    for vocabulary in (5, 40):
        with pytest.raises(AssertionError):
            check_solved_alike(vocabulary, FloorTooHigh)


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
