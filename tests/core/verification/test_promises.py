"""What budgets promise, on the path of real requests: rules, trees, truncations and budgets, as they may be combined.

By hand, ``python -m support.promises`` in the folder of tests prints what the slow test checks.
"""

from __future__ import annotations

import pytest
import torch
from support.promises import Instance, checked, enumerated, instances
from support.wrong_bounds import FloorTooHigh

from cactus_decoding import Budget, Request, SamplingParams, StaticTree
from cactus_decoding.core.divergences import ratio_clamp
from cactus_decoding.core.policy.position import Position

TREE = StaticTree("2")
OUTSIDE = Instance(
    seed=0,
    request=Request("clamped:width=12", Budget(nats=4.0), tree=TREE, sampling=SamplingParams(min_p=1e-4)),
    shape=TREE,
    tokens=6,
    cuts_draft=False,
    first=((1e-9, 0.00019, 1e-9, 0.99981, 1e-9, 1e-9), (1e-9, 0.28, 1e-9, 0.43, 0.29, 1e-9)),
)
"""Beside a fixed token, more than half of what the draft draws from is what the target's truncation excludes."""


def test_promises_are_kept() -> None:
    found = checked(instances(80, seed=1))
    print(found)
    assert not found.broken, found
    assert found.charged > 20


@pytest.mark.slow
def test_promises_are_kept_in_every_combination() -> None:
    found = checked(instances(12_000))
    print(found)
    assert not found.broken, found
    assert found.charged > 4000
    assert found.fullest > 0.99
    assert found.tightest == pytest.approx(1, abs=1e-9)


def test_what_truncation_excludes_of_a_draft_costs_nothing() -> None:
    kept = enumerated(OUTSIDE)
    assert not kept.broken
    assert kept.kl < 1e-12


# --- wrong variants ---


def test_bounds_that_are_wrong_beside_fixed_tokens_overspend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratio_clamp, "ClampedRow", FloorTooHigh)
    kept = enumerated(OUTSIDE)
    assert kept.broken == "less was charged than was spent"
    assert (kept.kl, kept.charged) == pytest.approx((3.516, 3.369), abs=1e-3)
    beside_fixed = (each for each in instances(2000) if "clamped" in str(each.request.rule) and each.request.tree)
    assert any(enumerated(each).broken for each in beside_fixed)


def test_a_meter_that_forgets_a_hundredth_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Position.cost
    monkeypatch.setattr(Position, "cost", lambda position, rule: 0.99 * cost(position, rule))
    assert checked(instances(20, seed=1)).broken


def test_a_row_that_is_too_large_by_a_rounding_of_float32_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    relaxed_target = Position.relaxed_target

    def wrong(position: Position, rule: object) -> torch.Tensor | None:
        h = relaxed_target(position, rule)  # type: ignore[arg-type]
        return None if h is None else h.float().double()

    monkeypatch.setattr(Position, "relaxed_target", wrong)
    assert checked(instances(40, seed=1)).broken
