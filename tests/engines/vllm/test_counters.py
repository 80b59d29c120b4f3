"""What is counted for Prometheus, by rule."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.counted import counted
from support.decisions import afforded_in_turn, as_given

from cactus_decoding import Budget, Proposal, Request, parse_rule
from cactus_decoding.core.counters import MAX_RULES, OTHER_RULES, RuleCounters, conditional_nats
from cactus_decoding.core.relaxed_logits import costs_of, relax_tokens
from cactus_decoding.engines.vllm.counters import BudgetMeter, DeviceCounters
from cactus_decoding.engines.vllm.step import afforded


def verified(counters: RuleCounters) -> dict[str, float]:
    return {rule: values["cactus_verified_positions"] for rule, values in counted(counters.text().decode()).items()}


def test_what_is_counted() -> None:
    counters = RuleCounters(CollectorRegistry())
    counting = DeviceCounters(counters, 0.5, torch.device("cpu"), seconds=1e9)
    rule, target = parse_rule("cactus:delta=1"), torch.tensor([[0.5, 0.5]] * 4).double()
    indices = [counting.sample(4), counting.sample(3)]
    assert [part.tolist() for part in indices] == [[1, 3], [0, 2]]
    many = [counting.sample(4) for _ in range(1000)]
    assert [sum(place in part for part in many) for place in range(4)] == pytest.approx([500] * 4, abs=10)
    costs = costs_of(relax_tokens(rule, target.log()[:, 0], target.log().logsumexp(-1)), None, None)
    left = torch.tensor([2, 1, 0, -1])  # two accepted, one rejected, one not looked at
    kept = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, False])
    counting.add(rule, costs, left, indices[0], *kept)
    counting.flush()
    found = counted(counters.text().decode())[str(rule)]
    assert found["cactus_verified_positions"] == 3
    assert found["cactus_accepted_tokens"] == 2
    assert found["cactus_relaxed_tokens"] == pytest.approx(2 * 0.5)  # g is 1, lossless accepts half of the time
    assert found["cactus_conditional_nats"] == pytest.approx(3 * torch.log(torch.tensor(2.0)).item())
    assert found["cactus_audited_positions"] == 1
    assert (found["cactus_protected_positions"], found["cactus_fell_back_positions"]) == (2, 1)
    for number in range(2 * MAX_RULES):
        counting.add(parse_rule(f"cactus:delta={number + 2}"), costs, left, None)
    counting.flush()
    assert len(verified(counters)) == MAX_RULES + 1
    assert verified(counters)[OTHER_RULES] > 0


def test_requests_cannot_take_the_label_of_the_server_s_own_rule() -> None:
    own = parse_rule("clamped:width=1")
    counters = RuleCounters(CollectorRegistry(), own)
    counting = DeviceCounters(counters, 0.0, torch.device("cpu"), seconds=1e9)
    costs = costs_of(relax_tokens(own, torch.tensor([0.0]), torch.tensor([2.0]).log()), None, None)
    for rule in (*(parse_rule(f"cactus:delta={number + 2}") for number in range(2 * MAX_RULES)), own):
        counting.add(rule, costs, torch.tensor([1]), None)
    counting.flush()
    assert verified(counters)[str(own)] == 1
    assert verified(counters)[OTHER_RULES] == MAX_RULES + 1
    assert len(verified(counters)) == MAX_RULES + 1


def test_sums_are_handed_on_every_so_often() -> None:
    rule = parse_rule("cactus:delta=1")
    costs = costs_of(relax_tokens(rule, torch.tensor([0.0]), torch.tensor([2.0]).log()), None, None)
    for seconds, handed_on in ((1e9, {}), (0.0, {str(rule): 1.0})):
        counters = RuleCounters(CollectorRegistry())
        DeviceCounters(counters, 0.0, torch.device("cpu"), seconds).add(rule, costs, torch.tensor([1]), None)
        assert verified(counters) == handed_on


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
    return [afforded_in_turn(*one) for one in zip(costs, budgets, spent, strict=True)]


def doubles(*values: list) -> list[torch.Tensor]:
    return [torch.tensor(one, dtype=torch.float64) for one in values]


@given(tables())
def test_it_admits_what_the_library_admits(table: tuple[list[list[float]], list[float], list[float]]) -> None:
    assert afforded(*doubles(*table)).tolist() == library_s(*table)


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
    meter.charge(torch.arange(len(rows)), costs, afforded(costs, before, limits) & looked_at)
    for index, total in enumerate(before.tolist()):
        admitted = afforded_in_turn(rows[index], budgets[index], total)
        for cost, fits in list(zip(rows[index], admitted, strict=True))[: visited[index]]:
            total += cost if fits else 0.0
        assert meter.spent[index].item() == total  # to the last bit
        assert total <= max(budgets[index], before[index].item())


@pytest.mark.parametrize("unknown", [math.inf, math.nan])
def test_a_position_of_unknown_cost_never_fits(unknown: float) -> None:
    (costs,) = doubles([[unknown, 0.5, unknown]])
    for budget in (1.0, math.inf):
        admitted = afforded(costs, *doubles([0.0], [budget]))
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


@pytest.mark.parametrize(
    "rule", ["clamped:width=2", "clamped:max_kl=0.1", "ensemble:weight=0.3", "lenience:lenience=0.5"]
)
@pytest.mark.parametrize("drawn", [[False, True], [False, False]])
def test_beside_fixed_tokens_what_is_relaxed_to_costs_what_is_charged(rule: str, drawn: list[bool]) -> None:
    target, draft = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    verifier = Request(rule, Budget(nats=math.inf), tree="static=2").verifier(as_given, as_given)
    proposal = Proposal([3, 2], draft[None], [-1, -1], drawn)
    for seed in range(5):
        _, outcome = verifier(
            verifier.begin(), target.expand(3, -1), [0, 3, 2], proposal, torch.Generator().manual_seed(seed)
        )
        for visit in outcome.visits:
            assert conditional_nats(visit) == pytest.approx(visit.nats, abs=1e-15)
            assert visit.nats > 0
