"""What steps cost, as running averages of their times."""

from __future__ import annotations

import pytest

from cactus_decoding.core.drafting.trees.adaptive_tree import StepCosts


class World:
    """A clock that a step moves on: drafting, then verifying."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def take_step(costs: StepCosts, world: World, k: int, draft: float, verify: float) -> float | None:
    costs.begin_step()
    world.now += draft
    costs.end_draft(k)
    world.now += verify
    seconds = costs.end_step()
    world.now += 1000.0  # what happens between steps is nobody's fault
    return seconds


def test_costs_are_measured_without_the_prompt():
    world = World()
    costs = StepCosts(clock=world)
    costs.begin_response()
    take_step(costs, world, 3, 50.0, 70.0)  # reads the prompt
    assert costs.of_a_pass == costs.of_a_node() == 0
    for k in (1, 5, 2, 4):
        take_step(costs, world, k, 0.25 * k, 2.0 + 0.125 * k)
    assert (costs.of_a_pass, costs.of_a_node()) == pytest.approx((0.25, 0.125), rel=1e-9)


def test_with_steps_of_one_length_only_drafting_is_known_to_cost():
    world = World()
    costs = StepCosts(clock=world)
    for _ in range(5):
        costs.begin_step()
        take_step(costs, world, 3, 0.75, 2.0)
    assert (costs.of_a_pass, costs.of_a_node()) == (pytest.approx(0.25), 0)


@pytest.mark.parametrize("k", [0, 1, 8])
def test_an_interruption_hardly_changes_what_proposals_cost(k: int):
    world = World()
    costs = StepCosts(clock=world)
    for i in range(200):
        drafted = (0, 1, 2, 4, 8)[i % 5]
        take_step(costs, world, drafted, 0.25 * drafted, 2.0 + 0.125 * drafted)
    take_step(costs, world, k, 0.25 * k + 300.0, 2.0 + 0.125 * k + 300.0)  # the machine did something else
    assert costs.of_a_pass == pytest.approx(0.25, rel=0.25)
    assert costs.of_a_node() == pytest.approx(0.125, rel=0.6)


def test_a_proposal_costs_no_more_than_the_first_token():
    world = World()
    costs = StepCosts(clock=world)
    for k, verify in ((1, 2.0), (2, 9.0)):  # noise alone says 7 for one more
        take_step(costs, world, k, 0.25 * k, verify)
    assert costs.of_a_node() < 2.5


def test_given_costs_are_not_measured():
    world = World()
    costs = StepCosts(0.25, 0.125, world)
    costs.begin_response()
    assert take_step(costs, world, 2, 50.0, 70.0) == pytest.approx(1 + 2 * 0.375)
    assert (costs.of_a_pass, costs.of_a_node()) == (0.25, 0.125)
