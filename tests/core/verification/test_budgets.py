"""Budgets of responses that are written with trees: every response of toy models, enumerated to 1e-12."""

from __future__ import annotations

import itertools
import math

import pytest
from support.tree_enumeration import (
    TREE_SCHEMES,
    LazyTree,
    Models,
    Shape,
    divergence,
    forgetful,
    product_law,
    respond,
    steps,
    uniform_shape,
)

from cactus_decoding import parse_rule

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
SHAPES = {
    "both": uniform_shape(2, 1, 1),
    "fixed only": uniform_shape(2, 2, 0),
    "wide, then narrow": Shape((2, 0), (1, 1)),
    "two drawn": Shape((0, 0), (2, 1)),
}
LENGTH = 4


def check(name: str, spelling: str, models: Models, shape: Shape, budget: float, **given: object) -> float:
    """Check that the divergence of responses is within what they spend, and that within the budget; return it."""
    responses = respond(TREE_SCHEMES[name], parse_rule(spelling), models, shape, LENGTH, budget=budget, **given)
    expected = product_law(lambda text: models(text)[0], models.vocabulary, LENGTH)
    moved = divergence(responses.law, expected)
    assert sum(responses.law.values()) == pytest.approx(1, abs=1e-12)
    assert moved <= responses.mean_spent + 1e-12
    assert responses.most_spent <= budget
    return moved


@pytest.mark.parametrize("spelling", RULES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_matching_moves_responses_by_no_more_than_they_spend(spelling: str, shape: Shape) -> None:
    models = Models(3, 41)
    moved = [check("token", spelling, models, shape, budget) for budget in (0.0, 0.05, 0.3)]
    assert moved[0] < 1e-12  # nothing to spend is lossless


@pytest.mark.parametrize("name", [name for name in TREE_SCHEMES if name != "token"])
@pytest.mark.parametrize("spelling", ["ensemble:weight=0.3", "lenience:lenience=0.6", "clamped:width=1"])
def test_joint_schemes_do_too_where_every_node_has_the_same_children(name: str, spelling: str) -> None:
    for shape, budget in itertools.product((SHAPES["both"], SHAPES["fixed only"], uniform_shape(2, 0, 1)), (0.05, 0.3)):
        check(name, spelling, Models(3, 42), shape, budget)


def test_matching_measures_what_it_does_not_limit() -> None:
    moved = check("token", "clamped:width=1", Models(3, 41), SHAPES["both"], math.inf)
    assert moved > 0.05  # and there is something to measure


def test_a_meter_that_forgets_the_last_node_is_noticed() -> None:
    models = Models(3, 41)
    for budget in (0.3, math.inf):
        with pytest.raises(AssertionError):
            check("token", "clamped:width=1", models, SHAPES["both"], budget, charge=forgetful)


def test_only_nodes_that_are_visited_are_paid_for_and_worked_out() -> None:
    models, shape, spent = Models(3, 43), SHAPES["both"], 0.0
    for step in steps(TREE_SCHEMES["token"], parse_rule("clamped:width=1"), models, (), shape, limit_nats=1.0):
        assert sorted(step.judge.decisions) == sorted(trial.parent for trial in step.walk.trials)
        spent += sum(each.nats for each in step.decisions)
    assert spent > 0


def test_trees_that_grow_as_the_draft_is_unsure_keep_the_promise() -> None:
    check("token", "cactus:delta=1", Models(3, 44), Shape((1, 1), (1, 1), by_row=True), 0.2, grow=LazyTree)
