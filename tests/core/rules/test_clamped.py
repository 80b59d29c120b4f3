"""The clamped ratio: what it emits, its two bounds, and that nothing else is cheaper at its acceptance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.exact_enumeration import make_rows, paired_rows
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.rules import Cactus, ClampedRatio

WIDTHS = (0.0, 1e-9, 1e-3, 0.1, 1.0, 3.0, 30.0, 300.0, 500.0)
CAPS = (1e-6, 0.01, 0.3, 5.0)
PAIRS = [*paired_rows(), make_rows(50, 200, seed=2)]

every_width = pytest.mark.parametrize("width", WIDTHS)
every_cap = pytest.mark.parametrize("max_kl", CAPS)


def alone(relaxed: Callable[[Tensor, Tensor], Tensor], target: Tensor, draft: Tensor) -> Tensor:
    """Return what is made of each row by itself, which is solved without a sort."""
    return torch.cat([relaxed(target[i : i + 1], draft[i : i + 1]) for i in range(len(target))])


def draft_within_support(target: Tensor, draft: Tensor) -> Tensor:
    """Return the probability that the drafted token is in the target's support: what can be accepted at most."""
    return torch.where(target > 0, draft, 0.0).sum(-1)


def slow_clamp(target: Tensor, draft: Tensor, width: Tensor) -> Tensor:
    """Return h for a width of each row, ``[rows, 1]``, by plain bisection of the normalisation: no sort, no sums."""
    low, high = -width, torch.zeros_like(width)
    for _ in range(70):
        middle = (low + high) / 2
        h = torch.minimum(torch.maximum(draft, target * middle.exp()), target * (middle + width).exp())
        short = h.sum(-1, keepdim=True) < 1
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return torch.minimum(torch.maximum(draft, target * high.exp()), target * (high + width).exp())


@every_width
def test_width_bounds_every_likelihood_ratio_and_h_sums_to_one(width: float) -> None:
    for target, draft in PAIRS:
        relaxed = ClampedRatio(width=width).relaxed_target(target, draft)
        assert (relaxed.sum(-1) - 1).abs().max() <= 1e-12
        assert (relaxed[target == 0] == 0).all()
        inside = target > 0
        ratio = relaxed[inside].log() - target[inside].log()
        assert ratio.abs().max() <= width * (1 + 1e-12) + 1e-13  # a log of a quotient near 1 has digits to 1e-16 only
        result = audit(ClampedRatio(width=width), target, draft)
        torch.testing.assert_close(result.output_probs, relaxed, rtol=0, atol=1e-12)
        assert result.max_log_ratio.max() <= width * (1 + 1e-12) + 1e-11


@every_width
def test_h_is_the_slow_clamp(width: float) -> None:
    for target, draft in PAIRS:
        expected = slow_clamp(target, draft, torch.full_like(target[:, :1], width))
        relaxed_target = ClampedRatio(width=width).relaxed_target
        for given in (relaxed_target(target, draft), alone(relaxed_target, target[:80], draft[:80])):
            torch.testing.assert_close(given, expected[: len(given)], rtol=0, atol=1e-12)


def test_acceptance_grows_with_width_from_the_overlap_to_all_that_can_be_accepted() -> None:
    for target, draft in PAIRS:
        results = [audit(ClampedRatio(width=width), target, draft) for width in WIDTHS]
        acceptance = torch.stack([result.acceptance for result in results])
        assert (acceptance.diff(dim=0) >= -1e-15).all()
        kl = torch.stack([result.kl for result in results])
        assert (kl.diff(dim=0) >= -1e-13).all()
        torch.testing.assert_close(acceptance[0], torch.minimum(target, draft).sum(-1), rtol=0, atol=1e-12)
        everything = draft_within_support(target, draft)
        ordinary = torch.where(target > 0, target, 1.0).amin(-1) > 1e-100  # a ratio of e^500 lifts these to anything
        torch.testing.assert_close(acceptance[-1][ordinary], everything[ordinary], rtol=0, atol=1e-12)


@every_cap
def test_max_kl_is_respected_and_reached(max_kl: float) -> None:
    for target, draft in PAIRS:
        rule = ClampedRatio(max_kl=max_kl)
        result = audit(rule, target, draft)
        assert (result.kl <= max_kl * (1 + 1e-9) + 1e-14).all()
        widest = audit(ClampedRatio(width=500.0), target, draft)
        reachable = widest.kl >= max_kl
        # where the cap binds it is spent in full; where it does not, everything that can be accepted is
        assert ((result.kl - max_kl).abs()[reachable] <= 1e-9 * max_kl + 1e-12).all()
        assert ((result.acceptance - widest.acceptance).abs()[~reachable] <= 1e-12).all()
        by_itself = alone(rule.relaxed_target, target[:80], draft[:80])
        assert (by_itself.sum(-1) - 1).abs().max() <= 1e-12
        spent = kl_of_rows(by_itself, target[:80])
        assert (spent <= max_kl * (1 + 1e-9) + 1e-14).all()
        assert (spent >= widest.kl[:80].clamp(max=max_kl) - 1e-9 * max_kl - 1e-12).all()
    assert reachable.any()


@pytest.mark.parametrize(
    "rule", [ClampedRatio(width=w) for w in WIDTHS] + [ClampedRatio(max_kl=c) for c in CAPS], ids=str
)
def test_closed_form_for_a_deterministic_draft_equals_the_rows(rule: ClampedRatio) -> None:
    rest = torch.tensor([0.0, 1e-310, 1e-300, 1e-40, 1e-12, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0], dtype=torch.float64)
    target = torch.stack([rest, (1 - rest) * 0.75, (1 - rest) * 0.25], dim=-1)
    drafted = torch.zeros(len(rest), 1, dtype=torch.int64)
    one_hot = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand_as(target)
    closed, rows = rule.judge(target, None, drafted), rule.judge(target, one_hot, drafted)
    torch.testing.assert_close(closed.relaxed_prob, rows.relaxed_prob, rtol=1e-9, atol=1e-12)
    # s is of no consequence where everything is accepted
    rejectable = closed.relaxed_prob.squeeze(1) < 1 - 1e-9
    torch.testing.assert_close(
        closed.residual_scale[rejectable], rows.residual_scale[rejectable], rtol=1e-6, atol=1e-12
    )


def test_float32_rows_that_do_not_quite_sum_to_one() -> None:
    # sums are off by up to 1e-6: what is emitted must stay within the bounds all the same
    target, draft = (rows.float() for rows in make_rows(2000, 40, seed=4))
    assert (target.double().sum(-1) != 1).any()
    for width in (0.1, 3.0, 100.0, 500.0):
        relaxed = ClampedRatio(width=width).relaxed_target(target, draft)
        assert (relaxed.sum(-1) - 1).abs().max() <= 1e-5
        inside = target > 0
        assert (relaxed[inside].log() - target[inside].double().log()).abs().max() <= width + 1e-9
        assert (audit(ClampedRatio(width=width), target, draft).output_probs.sum(-1) - 1).abs().max() <= 1e-5


def equally_accepting_widths(target: Tensor, draft: Tensor, acceptance: Tensor) -> Tensor:
    """Return the width of each row at which the clamped ratio accepts just as often, or a rounding more, ``[rows]``."""
    left = torch.zeros(len(target), 1, dtype=torch.float64)
    right = torch.full_like(left, 60.0)
    for _ in range(60):
        middle = (left + right) / 2
        accepts = torch.minimum(slow_clamp(target, draft, middle), draft).sum(-1, keepdim=True)
        enough = accepts >= acceptance.unsqueeze(1)
        left, right = torch.where(enough, left, middle), torch.where(enough, middle, right)
    return right.squeeze(1)


@pytest.mark.slow
def test_no_dearer_than_cactus_at_equal_acceptance_on_every_pair() -> None:
    target, draft = make_rows(50, 1000, seed=3)
    deltas = 10 ** (torch.rand(1000, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3.3 - 3)
    assert deltas.min() < 0.0011
    assert 1.9 < deltas.max() < 2
    rows = [(target[i], draft[i]) for i in range(1000)]
    cactus = [audit(Cactus(delta), *pair) for delta, pair in zip(deltas.tolist(), rows, strict=True)]
    wanted = torch.stack([result.acceptance for result in cactus])
    widths = equally_accepting_widths(target, draft, wanted)
    clamped = [audit(ClampedRatio(width=width), *pair) for width, pair in zip(widths.tolist(), rows, strict=True)]
    accepted = torch.stack([result.acceptance for result in clamped])
    assert (accepted - wanted).abs().max() <= 1e-12
    excess = torch.stack([c.kl - r.kl for c, r in zip(clamped, cactus, strict=True)])
    assert excess.max() <= 1e-9
    # and not because both spend nothing
    assert (excess < -1e-3).double().mean() > 0.5
