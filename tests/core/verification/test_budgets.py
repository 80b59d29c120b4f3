"""What budgets promise: every response of toy models, written with chains and with trees, enumerated to 1e-12."""

from __future__ import annotations

import itertools
import math

import pytest
from support.tables import all_of
from support.tree_enumeration import (
    TREE_SCHEMES,
    Charge,
    Models,
    Responses,
    Shape,
    Step,
    charged,
    divergence,
    largest_shift,
    product_law,
    respond,
    steps,
    uniform_shape,
)

from cactus_decoding import Budget, audit, parse_rule
from cactus_decoding.core.policy import decide
from cactus_decoding.core.policy.decide import Policy, PolicyState
from cactus_decoding.core.types import Decision

RULES = (
    "lossless",
    "cactus:delta=0.1",
    "cactus:delta=1,solver=exact",
    "ensemble:weight=0.3",
    "lenience:lenience=0.6",
    "clamped:width=1",
    "typical:recovery=sample",
    "top_k:k=2",
)
CHAINS = [uniform_shape(depth, 0, 1) for depth in (1, 2, 3)]
SHAPES = {
    "a chain": CHAINS[1],
    "both": uniform_shape(2, 1, 1),
    "fixed only": uniform_shape(2, 2, 0),
    "wide, then narrow": Shape((2, 0), (1, 1)),
    "two drawn": Shape((0, 0), (2, 1)),
}
LENGTH, ROUNDING = 4, 1e-12
MODELS = Models(3, 41)
TARGET_LAW = product_law(lambda text: MODELS(text)[0], 3, LENGTH)


def responses(name: str, spelling: str, shape: Shape, budget: Budget | float, charge: Charge = charged) -> Responses:
    budget = budget if isinstance(budget, Budget) else Budget(nats=budget)
    return respond(TREE_SCHEMES[name], Policy(parse_rule(spelling), budget), MODELS, shape, LENGTH, charge=charge)


def check(name: str, spelling: str, shape: Shape, budget: Budget | float, charge: Charge = charged) -> float:
    """Check that the divergence of responses is within what they spend, and that within the budget; return it."""
    found = responses(name, spelling, shape, budget, charge)
    limit = budget.limit if isinstance(budget, Budget) else budget
    moved = divergence(found.law, TARGET_LAW)
    assert sum(found.law.values()) == pytest.approx(1, abs=ROUNDING)
    assert moved <= found.mean_spent + ROUNDING
    assert found.mean_spent <= found.most_spent + ROUNDING
    assert found.most_spent <= limit
    assert largest_shift(found.law, TARGET_LAW) <= Budget(nats=limit).shift + ROUNDING
    return moved


@pytest.mark.parametrize("spelling", RULES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_matching_moves_responses_by_no_more_than_they_spend(spelling: str, shape: Shape) -> None:
    moved = [check("token", spelling, shape, budget) for budget in (0.0, 0.05, 0.3)]
    assert moved[0] < ROUNDING  # nothing to spend is lossless


@pytest.mark.parametrize("name", [name for name in TREE_SCHEMES if name != "token"])
@pytest.mark.parametrize("spelling", ["ensemble:weight=0.3", "lenience:lenience=0.6", "clamped:width=1"])
def test_joint_schemes_do_too_where_every_node_has_the_same_children(name: str, spelling: str) -> None:
    for shape, budget in itertools.product((SHAPES["both"], SHAPES["fixed only"], *CHAINS), (0.05, 0.3)):
        check(name, spelling, shape, budget)


@all_of("shape", CHAINS)
def test_a_paced_budget_is_kept_too(shape: Shape) -> None:
    for limit in (0.02, 0.1, 0.5):
        check("token", "clamped:width=1", shape, Budget(nats=limit, expected_tokens=5))


def test_without_a_budget_cactus_moves_a_response_by_more_than_its_delta() -> None:
    for delta in (0.02, 0.1):
        rule = f"cactus:delta={delta},solver=exact"
        assert audit(rule, *MODELS(())).kl > delta  # even one emitted token does
        assert check("token", rule, CHAINS[1], math.inf) > delta


def test_without_need_nothing_falls_back() -> None:
    plenty, unlimited = (responses("token", "clamped:width=1", CHAINS[1], limit) for limit in (100.0, math.inf))
    assert plenty == unlimited


# --- wrong meters ---


def forgets_the_last(policy: Policy, state: PolicyState, step: Step) -> PolicyState:
    """Charge accepted positions only."""
    kept = [visit for visit in step.walk.visits if visit.kept is not None]
    return policy.end_step(state, [visit.decision for visit in kept], step.tokens)


def charges_late(policy: Policy, state: PolicyState, step: Step) -> PolicyState:
    """Charge each position with the cost of the one before it."""
    late = [Decision(state.rule), *step.decisions][: len(step.walk.path) + 1]
    return policy.end_step(state, late, step.tokens)


@pytest.mark.parametrize("wrong", [forgets_the_last, charges_late])
@pytest.mark.parametrize("label", ["a chain", "both"])
def test_a_meter_that_is_off_by_one_position_is_noticed(wrong: Charge, label: str) -> None:
    for budget in (0.3, math.inf):
        with pytest.raises(AssertionError):
            check("token", "clamped:width=1", SHAPES[label], budget, wrong)


def test_an_admission_that_looks_at_the_past_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "affords", lambda state, cost: state.spent < state.limit)
    with pytest.raises(AssertionError):
        check("token", "clamped:width=1", SHAPES["a chain"], 0.1)


def test_only_nodes_that_are_visited_are_paid_for_and_worked_out() -> None:
    policy, spent = Policy(parse_rule("clamped:width=1"), Budget(nats=1.0)), 0.0
    for step in steps(TREE_SCHEMES["token"], policy, Models(3, 43), (), SHAPES["both"]):
        assert sorted(step.judge.decisions) == sorted(visit.parent for visit in step.walk.visits)
        spent += sum(each.nats for each in step.decisions)
    assert spent > 0


def test_trees_that_grow_as_the_draft_is_unsure_keep_the_promise() -> None:
    check("token", "cactus:delta=1", Shape((1, 1), (1, 1), by_row=True), 0.2)
