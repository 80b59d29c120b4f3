"""The lift that a divergence budget allows, against 60-digit arithmetic and against whole rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import mpmath
import pytest
import torch
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.divergences import f_divergences
from cactus_decoding.core.divergences.f_divergences import DIVERGENCES, lift_by_expansion, lift_exactly
from cactus_decoding.core.rules import Cactus

mpmath.mp.dps = 60

TARGET_PROBS = (
    *(1e-45, 1e-40, 1e-35, 1e-30, 1e-20, 1e-12, 1e-8, 1e-4),
    *(0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-4, 1 - 1e-8, 1 - 1e-12),
)
DELTAS = (1e-6, 1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0)

# f of each divergence, from the literature, with f(0) as its limit
GENERATORS: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "kl": lambda t: t * mpmath.log(t) if t else mpmath.mpf(0),
    "reverse_kl": lambda t: -mpmath.log(t) if t else mpmath.inf,
    "chi_square": lambda t: (t - 1) ** 2,
    "squared_hellinger": lambda t: (mpmath.sqrt(t) - 1) ** 2 / 2,
    "total_variation": lambda t: abs(t - 1) / 2,
    "jensen_shannon": lambda t: ((t * mpmath.log(t) if t else 0) - (t + 1) * mpmath.log((t + 1) / 2)) / 2,
}

every_divergence = pytest.mark.parametrize("name", DIVERGENCES)
every_delta = all_of("delta", DELTAS)


def cost(name: str, g: mpmath.mpf, q: mpmath.mpf) -> mpmath.mpf:
    """Return D(g) by the definition of an f-divergence."""
    f = GENERATORS[name]
    return q * f(g / q) + (1 - q) * f((1 - g) / (1 - q))


@cache
def true_lift(name: str, q: float, delta: float) -> mpmath.mpf:
    """Return the root of D(g) = delta in [q, 1] by bisection, or 1 where it is never reached."""
    exact_q, budget = mpmath.mpf(q), mpmath.mpf(delta)
    if cost(name, mpmath.mpf(1), exact_q) <= budget:
        return mpmath.mpf(1)
    low, high = exact_q, mpmath.mpf(1)
    for _ in range(110):
        middle = mpmath.sqrt(low * high) if low < high / 4 else (low + high) / 2
        low, high = (middle, high) if cost(name, middle, exact_q) <= budget else (low, middle)
    return low


@every_divergence
def test_value_is_the_f_divergence(name: str) -> None:
    for q in TARGET_PROBS:
        lifts = [q + (1 - q) * x for x in (0.0, 1e-6, 0.01, 0.5, 0.9)]
        lifts += [min(q * 1.5, 1.0), 1.0]
        given = DIVERGENCES[name].value(torch.tensor(lifts, dtype=torch.float64), torch.tensor(q, dtype=torch.float64))
        for g, value in zip(lifts, given.tolist(), strict=True):
            expected = cost(name, mpmath.mpf(g), mpmath.mpf(q))
            # near g = q a KL is the difference of equal numbers: what is lost is relative to the lift, not to the value
            assert value == pytest.approx(float(expected), rel=1e-12, abs=1e-15 * max(g - q, 1e-300)), (q, g)


@every_divergence
@every_delta
def test_exact_lift_is_the_root(name: str, delta: float) -> None:
    lifted = lift_exactly(name, torch.tensor(TARGET_PROBS, dtype=torch.float64), delta)
    for q, g in zip(TARGET_PROBS, lifted.tolist(), strict=True):
        expected = true_lift(name, q, delta)
        assert abs(g - expected) <= 1e-10, (q, g)
        assert abs(g / expected - 1) <= 1e-6, (q, g)
        spent = cost(name, mpmath.mpf(g), mpmath.mpf(q))
        assert spent <= delta * (1 + 1e-9), f"overspent at q = {q}"
        # the next few floats would spend all there is: nothing is left over that float64 could express
        beyond = min(1.0, g * (1 + 1e-15))
        assert g == 1 or cost(name, mpmath.mpf(beyond), mpmath.mpf(q)) >= delta * (1 - 1e-9), f"underspent at q = {q}"
        assert abs(spent - delta) <= 1e-10 or g >= 1 - 1e-15 or (name == "reverse_kl" and g > 0.999)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "jensen_shannon"])
def test_lift_of_one_token_does_not_depend_on_the_others_in_the_call(name: str) -> None:
    # the smallest probabilities of float32 and of float64 take the longest to bracket
    probs = torch.tensor([1e-310, 1e-300, 1e-45, 1e-40, 1e-20, 0.3, 1 - 1e-12], dtype=torch.float64)
    together = lift_exactly(name, probs, 0.1)
    for q, g in zip(probs, together, strict=True):
        assert lift_exactly(name, q, 0.1).item() == pytest.approx(g.item(), rel=1e-12)


@pytest.mark.parametrize("delta", [0.01, 0.2, 1.0, 10.0])
def test_ordinary_lifts_need_no_bracket(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.cat([torch.logspace(-300, -1, 600, dtype=torch.float64), torch.linspace(0.01, 0.999, 600).double()])
    kl = DIVERGENCES["kl"]
    q = q[kl.value(torch.ones_like(q), q) > delta]
    expected = f_divergences._find_bracketed(kl, q, delta)
    monkeypatch.delattr(f_divergences, "_find_bracketed")  # on a device it would wait in every round
    given = lift_exactly("kl", q, delta)
    assert (kl.value(given, q) <= delta).all()
    assert torch.allclose(given, expected, rtol=1e-11, atol=0)


@every_divergence
@all_of("lift", [lift_exactly, lift_by_expansion])
def test_limits_of_the_lift(name: str, lift: Callable[[str, Tensor, float], Tensor]) -> None:
    if lift is lift_by_expansion and DIVERGENCES[name].curvature is None:
        with pytest.raises(ValueError, match=rf"{name}.*exact"):
            lift(name, torch.tensor(0.5), 0.1)
        return
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for delta in (0.0, 1e-6, 1.0, 1e308):
        assert torch.equal(lift(name, ends, delta), ends)  # what the target excludes or requires stays so
    probs = torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(lift(name, probs, 0.0), probs)
    lifts = torch.stack([lift(name, probs, delta) for delta in (0.0, 1e-6, 0.01, 0.1, 1.0, 1e308)])
    assert (lifts.diff(dim=0) >= 0).all()
    assert (lifts[1] > lifts[0]).all()
    assert (lifts <= 1).all()


def hard_rows(count: int, vocabulary: int) -> Tensor:
    """Return rows from flat to nearly one-hot, their remainder down to about 1e-14."""
    generator = torch.Generator().manual_seed(1)
    sharpness = torch.rand(count, 1, generator=generator, dtype=torch.float64) * 15
    return (torch.randn(count, vocabulary, generator=generator, dtype=torch.float64) * sharpness).softmax(-1)


def kl_given_the_drafted_token(rule: Cactus, rows: Tensor, drafted: Tensor) -> Tensor:
    """Build h as whole rows, h(n) = g and s q elsewhere, and return KL(h || q) summed over the vocabulary."""
    relaxed_prob, scale, _ = rule.judge(rows, None, drafted)
    relaxed = (scale * rows).scatter(1, drafted, relaxed_prob)
    torch.testing.assert_close(relaxed.sum(-1), torch.ones(len(rows), dtype=torch.float64), rtol=0, atol=1e-12)
    return torch.where(relaxed > 0, relaxed * (relaxed / rows).log(), 0.0).sum(-1)


@every_delta
def test_exact_cactus_never_overspends_on_whole_rows(delta: float) -> None:
    rows = hard_rows(10_000, 12)
    assert (rows.max(-1).values > 1 - 1e-9).any()
    seeded = torch.multinomial(rows, 1, generator=torch.Generator().manual_seed(2))
    for drafted in (rows.argmax(-1, keepdim=True), rows.argmin(-1, keepdim=True), seeded):
        assert (kl_given_the_drafted_token(Cactus(delta, solver="exact"), rows, drafted) <= delta * (1 + 1e-9)).all()


@all_of("delta", [1e-4, 0.01, 0.1, 0.5, 1.0, 1.25, 1.2564, 1.2565, 1.5, 3.0])
def test_worst_overspend_of_the_expansion(delta: float) -> None:
    # dense near 1 too: for a small budget g is clipped to 1 only there
    below = torch.linspace(0, 1, 200_001, dtype=torch.float64)[1:-1]
    probs = torch.cat([below, 1 - torch.logspace(-6, -1, 200_001, dtype=torch.float64)])
    lifted = lift_by_expansion("kl", probs, delta)
    spent = DIVERGENCES["kl"].value(lifted, probs)
    clipped = lifted == 1
    torch.testing.assert_close(spent[clipped], -probs[clipped].log())
    assert spent.max().item() == pytest.approx(math.log1p(2 * delta), rel=1e-4)
    assert (spent.max() > delta) == (delta < 1.2564312)
    assert (spent[lifted <= 0.5] <= delta * (1 + 1e-9)).all()
    if delta == 0.01:
        assert spent.max().item() / delta == pytest.approx(1.98, abs=0.005)


@pytest.mark.parametrize("solver", ["taylor", "exact"])
def test_max_ratio_is_respected(solver: str) -> None:
    rows = hard_rows(2_000, 6)
    every = torch.arange(6).expand_as(rows)
    free, *_ = Cactus(0.5, solver=solver).judge(rows, None, every)
    for max_ratio in (1.0, 1.5, 20.0):
        capped, scale, _ = Cactus(0.5, solver=solver, max_ratio=max_ratio).judge(rows, None, every)
        assert torch.equal(capped, torch.minimum(free, max_ratio * rows))
        rest = 1 - rows
        torch.testing.assert_close(capped + scale * rest, torch.ones_like(rows), rtol=0, atol=1e-12)
