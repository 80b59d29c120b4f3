"""Budgets: how they are given, what is admitted, and what they do in a real loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.decisions import afforded_in_turn, emitted_by, plan
from support.exact_enumeration import enumerate_tokens, make_rows
from support.rules_under_test import SPELLINGS, every_rule

from cactus_decoding import Budget, audit, generate, parse_rule
from cactus_decoding.core.divergences.rows import kl_of_rows
from cactus_decoding.core.policy.decide import Pace
from cactus_decoding.core.rules.base import GreedyRule


@given(st.lists(st.floats(0, 10), max_size=8), st.floats(0, 20), st.floats(0, 5))
def test_admission_keeps_the_limit_and_looks_only_back(costs: list[float], limit: float, spent: float) -> None:
    admitted = afforded_in_turn(costs, limit, spent)
    total = spent
    for cost, fits in zip(costs, admitted, strict=True):
        assert fits == (total < limit and total + cost <= limit)
        total += cost if fits else 0.0
    for i in range(len(costs)):
        assert afforded_in_turn(costs[:i], limit, spent) == admitted[:i]


def test_positions_of_unknown_or_infinite_cost_are_never_admitted() -> None:
    assert afforded_in_turn([math.nan, math.inf, 0.0], limit=1.0) == [False, False, True]


@every_rule([text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule)])
def test_plan_is_the_rule_where_it_was_admitted_and_lossless_elsewhere(spelling: str) -> None:
    rule, (target, draft) = parse_rule(spelling), make_rows(5, 12, seed=8)
    ids = torch.zeros(12, dtype=torch.long)
    costs = audit(rule, target, draft).kl
    planned = plan(rule, target, draft, ids, limit=0.2)
    assert planned.costs == pytest.approx(costs.clamp(min=0).tolist(), abs=1e-9)
    assert planned.fell_back == [not fits for fits in afforded_in_turn(planned.costs, 0.2)]
    over = torch.tensor(planned.fell_back).unsqueeze(1)
    expected = torch.where(over, target, enumerate_tokens(rule, target, draft)[0])
    torch.testing.assert_close(emitted_by(planned.rule, target, draft), expected, rtol=0, atol=1e-9)


def test_deterministic_draft_costs_what_a_one_hot_row_costs() -> None:
    target, _ = make_rows(5, 6, seed=9)
    ids = torch.tensor([0, 1, 2, 3, 4, 0])
    one_hot = torch.nn.functional.one_hot(ids, 5).double()
    for spelling in ("clamped:width=1", "cactus:delta=0.1", "ensemble:weight=0.2"):
        without, with_row = (plan(parse_rule(spelling), target, d, ids, limit=0.3) for d in (None, one_hot))
        assert (without.costs, without.fell_back) == (with_row.costs, with_row.fell_back)


def test_kl_of_rows_is_the_audited_kl() -> None:
    target, draft = make_rows(6, 40, seed=10)
    rule = parse_rule("clamped:width=1")
    torch.testing.assert_close(
        kl_of_rows(rule.relaxed_target(target, draft), target), audit(rule, target, draft).kl, rtol=0, atol=1e-12
    )
    assert kl_of_rows(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])) == math.inf


def test_max_shift_is_the_tighter_of_two_bounds() -> None:
    for shift in (0.01, 0.1, 0.5, 0.9, 0.99):
        limit = Budget(max_shift=shift).limit
        assert Budget(nats=limit).shift == pytest.approx(shift, rel=1e-12)
        # the next larger budget would break both bounds
        more = limit * (1 + 1e-9)
        assert math.sqrt(more / 2) > shift
        assert math.sqrt(1 - math.exp(-more)) > shift
    assert Budget(max_shift=0.99).limit > 2 * 0.99**2  # where the second bound is the tighter one
    assert Budget(max_shift=1).limit == math.inf
    assert Budget(max_shift=0).limit == 0
    assert Budget(nats=math.inf).shift == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give either nats or max_shift"),
        ({"nats": 1.0, "max_shift": 0.1}, "give either nats or max_shift"),
        ({"nats": -0.1}, r"nats must be in \[0, inf\], but is -0.1"),
        ({"nats": math.inf, "expected_tokens": 10}, "spreads a finite budget"),
    ],
)
def test_wrong_budgets_are_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**given)


# --- in a response ---


@pytest.mark.parametrize("rule", ["clamped:width=2", "cactus:delta=1", "ensemble:weight=0.5", "typical", "top_k:k=3"])
def test_a_response_keeps_its_budget_and_says_what_it_spent(pair, prompt: str, rule: str) -> None:
    for seed, limit in enumerate((0.0, 0.01, 0.3)):
        response = generate(pair, prompt, rule=rule, budget=limit, seed=seed)
        metrics = response.metrics
        assert 0 <= metrics.nats <= limit
        assert response.budget_left == limit - metrics.nats
        assert metrics.metered == metrics.accepted + metrics.recovered
        assert metrics.fell_back <= metrics.metered


@pytest.mark.parametrize("rule", ["cactus:delta=0.5", "clamped:width=1", "typical", "top_k:k=3,residual=mask"])
def test_an_empty_budget_is_lossless(pair, prompt: str, rule: str) -> None:
    lossless = generate(pair, prompt, seed=6)
    empty = generate(pair, prompt, rule=rule, seed=6, budget=0)
    assert empty.token_ids == lossless.token_ids
    assert empty.metrics.relaxed == 0


def test_pacing_leaves_something_for_the_end(pair, prompt: str) -> None:
    """A budget that greedy spending burns early lasts longer when it is paced."""

    def last_spending(budget: Budget) -> float:
        response = generate(pair, prompt, rule="clamped:width=3", budget=budget, seed=2)
        return response.metrics.fell_back / response.metrics.metered

    assert last_spending(Budget(nats=0.02, expected_tokens=60)) < last_spending(Budget(nats=0.02))


def test_pace_follows_what_was_spent() -> None:
    pace = Pace.begin(1.0, 0.6, expected_tokens=60)
    assert pace.width(0.6) == pytest.approx(1.0)
    cheap = pace.after([0.001] * 10, pace.width(0.6), num_emitted=10)
    dear = pace.after([0.03] * 10, pace.width(0.6), num_emitted=10)
    assert dear.width(0.3) < 1.0 < cheap.width(0.59)
    assert dear.width(0.0) == 0.0  # nothing left: lossless
    overdue = pace.after([0.01] * 60, 1.0, num_emitted=600)
    assert 0 < overdue.width(0.1) < 20
