"""The meter admits and charges what the library's own does, many requests at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.decisions import admit

from cactus_decoding.engines.openai.counters import BudgetMeter
from cactus_decoding.engines.vllm.batched_policy import admitted as admitted_at_once

CPU = torch.device("cpu")
NATS = st.floats(0, 4) | st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0]) | st.just(math.inf) | st.just(math.nan)
AMOUNT = st.floats(0, 4) | st.sampled_from([0.0, 0.1, 0.3, 1.0])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[list[float]], list[float], list[float]]:
    """Return costs of positions, and what is spent and allowed, of a few requests."""
    width, requests = draw(st.integers(1, 6)), draw(st.integers(1, 4))

    def column(values: st.SearchStrategy) -> list:
        return draw(st.lists(values, min_size=requests, max_size=requests))

    return column(st.lists(NATS, min_size=width, max_size=width)), column(AMOUNT), column(AMOUNT)


def by_running_totals(costs: torch.Tensor, spent: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
    """Return what a wrong meter admits: it stops at the first position that it cannot afford."""
    return spent.unsqueeze(1) + costs.cumsum(1) <= budgets.unsqueeze(1)


def library_s(costs: list[list[float]], spent: list[float], budgets: list[float]) -> list[list[bool]]:
    return [admit(*one) for one in zip(costs, budgets, spent, strict=True)]


def doubles(*values: list) -> list[torch.Tensor]:
    return [torch.tensor(one, dtype=torch.float64) for one in values]


@given(tables())
def test_it_admits_what_the_library_admits(table: tuple[list[list[float]], list[float], list[float]]) -> None:
    assert admitted_at_once(*doubles(*table)).tolist() == library_s(*table)


def test_running_totals_would_not() -> None:
    table = [[0.25, 1.0, 0.5]], [0.25], [1.0]
    assert library_s(*table) == [[True, False, True]]
    assert by_running_totals(*doubles(*table)).tolist() != library_s(*table)


@given(tables(), st.data())
def test_it_charges_as_it_admits_and_never_overspends(
    table: tuple[list[list[float]], list[float], list[float]], data: st.DataObject
) -> None:
    rows, spent, budgets = table
    visited = [data.draw(st.integers(0, len(rows[0]))) for _ in rows]
    meter = BudgetMeter(CPU, slots=len(rows))
    meter.spent.copy_(torch.tensor(spent))
    costs, _, limits = doubles(*table)
    before = meter.spent.clone()
    looked_at = torch.arange(len(rows[0])) < torch.tensor(visited).unsqueeze(1)
    meter.charge(torch.arange(len(rows)), costs, admitted_at_once(costs, before, limits) & looked_at)
    for index, total in enumerate(before.tolist()):
        admitted = admit(rows[index], budgets[index], total)
        for cost, fits in list(zip(rows[index], admitted, strict=True))[: visited[index]]:
            total += cost if fits else 0.0
        assert meter.spent[index].item() == total  # to the last bit
        assert total <= max(budgets[index], before[index].item())


@pytest.mark.parametrize("unknown", [math.inf, math.nan])
def test_a_position_of_unknown_cost_never_fits(unknown: float) -> None:
    (costs,) = doubles([[unknown, 0.5, unknown]])
    for budget in (1.0, math.inf):
        admitted = admitted_at_once(costs, *doubles([0.0], [budget]))
        assert admitted.tolist() == [[False, True, False]]
        meter = BudgetMeter(CPU, slots=1)
        meter.charge(torch.tensor([0]), costs, admitted)
        assert meter.spent.tolist() == [0.5]


def test_a_response_keeps_its_slot_and_an_unknown_one_has_spent_everything() -> None:
    meter, one, other = BudgetMeter(CPU, slots=4), object(), object()
    slot = meter.slot_of(one, False, set)
    assert meter.slot_of(other, True, set) != slot
    assert sorted(meter.spent.tolist()) == [0, 0, 0, math.inf]
    meter.spent[slot] = 0.5
    assert meter.slot_of(one, True, set) == slot
    assert meter.spent[slot] == 0.5


def test_the_longest_unused_slot_is_reused_unless_it_is_in_the_batch() -> None:
    meter, responses = BudgetMeter(CPU, slots=3), [object() for _ in range(5)]
    first, second, third = (meter.slot_of(one, False, set) for one in responses[:3])
    meter.slot_of(responses[0], True, set)  # used again
    meter.spent[second] = 0.5
    assert meter.slot_of(responses[3], False, set) == second
    assert meter.spent[second] == 0
    assert meter.slot_of(responses[4], False, lambda: {second, third}) == first
