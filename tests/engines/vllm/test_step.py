"""One relaxed step: what the engine samples from, what is charged and counted, and that the logits come back."""

import contextlib
import dataclasses
import math

import pytest
import torch
from support.decisions import plan
from support.engine_rules import GREEDY_SPELLINGS, SPELLINGS, relaxed_token_logit
from support.rules_under_test import every_rule
from support.tables import all_of

from cactus_decoding import parse_rule
from cactus_decoding.core.relaxed_logits import relax_rows
from cactus_decoding.core.rules.base import LiftRule
from cactus_decoding.engines.vllm.counters import BudgetMeter
from cactus_decoding.engines.vllm.step import Group, Layout, Protected, RelaxedStep
from cactus_decoding.engines.vllm.v1 import DraftProbs

CPU = torch.device("cpu")
REQUESTS, DEPTH, VOCABULARY = 5, 3, 7
ROWS = REQUESTS * DEPTH
kinds_of_draft = pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, VOCABULARY, generator=generator) * 2
    probs = torch.randn(ROWS, VOCABULARY, generator=generator).softmax(-1)
    return logits, probs, torch.multinomial(probs, 1, generator=generator).squeeze(1)


def layout(rules: list[str], budgets: list[float] | None = None, by_mask: bool = False) -> Layout:
    requests, groups = torch.arange(REQUESTS).repeat_interleave(DEPTH), []
    for number, spelling in enumerate(rules):
        chosen = requests % len(rules) == number
        rows = torch.arange(ROWS) if by_mask else chosen.nonzero().squeeze(1)
        groups.append(Group(parse_rule(spelling), rows, chosen if by_mask else None))
    nats = None if budgets is None else torch.tensor(budgets, dtype=torch.float64)
    depths = torch.arange(DEPTH).repeat(REQUESTS)
    return Layout(groups, requests, depths, DEPTH, nats, torch.arange(REQUESTS).flip(0))


class Tally:
    def __init__(self) -> None:
        self.added: dict[str, torch.Tensor] = {}

    def sample(self, positions: int) -> None:
        return None

    def add(self, rule, costs, left, sample, protected, fell_back) -> None:
        self.added[str(rule)] = torch.stack([(left >= 0).sum(), (left > 0).sum(), costs.conditional[left >= 0].sum()])
        self.protected, self.fell_back = (0 if kept is None else int(kept.sum()) for kept in (protected, fell_back))


def relaxed_logits(step: RelaxedStep, logits: torch.Tensor) -> torch.Tensor:
    with step.relaxed_logits():
        return logits.clone()


@kinds_of_draft
@every_rule(SPELLINGS)
def test_its_rows_are_those_of_the_rule_and_the_others_the_target_s(spelling: str, one_hot: bool) -> None:
    logits, probs, drafted = batch()
    given, rule = logits.clone(), parse_rule(spelling)
    where = layout([spelling, "lossless"])
    where.groups.pop()
    step = RelaxedStep(where, BudgetMeter(CPU, 1), None, logits, drafted, None if one_hot else DraftProbs(probs))
    relaxed = relaxed_logits(step, logits)
    for row, request in enumerate(where.requests.tolist()):
        expected, token = given[row].clone(), drafted[row]
        if request % 2:
            pass
        elif one_hot or isinstance(rule, LiftRule):
            expected[token] = relaxed_token_logit(rule, expected, token)
        else:
            expected = relax_rows(rule, given[row : row + 1], probs[row : row + 1], token.view(1)).logits[0]
        assert torch.equal(relaxed[row], expected)
    assert torch.equal(logits, given)  # to the last bit


@kinds_of_draft
def test_rows_by_index_and_rows_by_mask_come_to_the_same(one_hot: bool) -> None:
    outcomes = []
    for by_mask in (False, True):
        logits, probs, drafted = batch()
        drafted[4] = -1  # nobody drafted here
        meter, tally = BudgetMeter(CPU, REQUESTS), Tally()
        rules = ["cactus:delta=0.5", "clamped:width=1", "ensemble:weight=0.5"]
        where = layout(rules, [0.7, math.inf, 0.3, 0.5, 0.2], by_mask)
        step = RelaxedStep(where, meter, tally, logits, drafted, None if one_hot else DraftProbs(probs))
        relaxed = relaxed_logits(step, logits)
        step.settle(torch.tensor([1, 2, 3, 4, 2]))
        assert torch.equal(logits, batch()[0])
        assert torch.equal(relaxed[4], logits[4])
        outcomes.append((relaxed, meter.spent, torch.stack([tally.added[str(parse_rule(rule))] for rule in rules])))
    for one, other in zip(*outcomes, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(outcomes[0][0], batch()[0])


def test_what_is_counted_was_looked_at_and_relaxed() -> None:
    logits, _, drafted = batch()
    tally = Tally()
    where = layout(["cactus:delta=0.01"], [math.inf] * 4 + [0.0])
    step = RelaxedStep(where, BudgetMeter(CPU, REQUESTS), tally, logits, drafted, None)
    step.settle(torch.tensor([1, 2, 3, 4, 4]))
    visited, accepted, _ = tally.added[str(parse_rule("cactus:delta=0.01"))].tolist()
    assert (visited, accepted) == (1 + 2 + 3 + 3, 0 + 1 + 2 + 3)  # the last request has no nat to spend
    assert tally.fell_back == 3


def test_the_logits_come_back_when_the_sampler_fails() -> None:
    logits, probs, drafted = batch()
    step = RelaxedStep(
        layout(["cactus:delta=1", "clamped:width=1"]), BudgetMeter(CPU, 1), None, logits, drafted, DraftProbs(probs)
    )
    with contextlib.suppress(RuntimeError), step.relaxed_logits():
        assert not torch.equal(logits, batch()[0])
        raise RuntimeError("no sampler")
    assert torch.equal(logits, batch()[0])


@kinds_of_draft
@pytest.mark.parametrize("budget", [0.3, math.inf])
@all_of("spelling", ["cactus:delta=1", "clamped:width=2"])
def test_a_report_adds_up_what_was_decided_about_visited_positions(spelling: str, budget: float, one_hot: bool) -> None:
    """That decisions are those of the library's policy, `test_batched_policy` says."""
    asking, num_sampled, total = torch.arange(REQUESTS) % 2 == 0, torch.tensor([1, 2, 3, 4, 4]), torch.zeros(6).double()
    protected = [Protected(torch.arange(ROWS), torch.tensor([1, 4]), torch.full((ROWS,), 0.4).double())]
    for seed in range(12):
        logits, probs, drafted = batch(seed)
        where = layout([spelling], None if math.isinf(budget) else [budget] * REQUESTS)
        where, meter = dataclasses.replace(where, protected=protected, reporting=asking), BudgetMeter(CPU, REQUESTS)
        step = RelaxedStep(where, meter, None, logits, drafted, None if one_hot else DraftProbs(probs))
        step.settle(num_sampled)
        target, draft, ids = logits.double().softmax(-1), None if one_hot else probs.double(), drafted.unsqueeze(1)
        h = parse_rule(spelling).judge(target, draft, ids).relaxed_prob
        q, h = ((x / (1.0 if draft is None else draft.gather(1, ids))).clamp(max=1) for x in (target.gather(1, ids), h))
        relaxed = (1 - q / h).squeeze(1)  # how likely the lossless test rejects what the rule accepts
        (change,) = step._changes
        fell_back = torch.zeros(ROWS, dtype=torch.bool) if change.fell_back is None else change.fell_back
        visited = where.depths < num_sampled[where.requests]
        accepted = where.depths < num_sampled[where.requests] - 1
        for request in range(REQUESTS):
            own, slot = visited & (where.requests == request), REQUESTS - 1 - request
            judged, counts = own & change.allowed, meter.counts[slot]
            nats = change.costs.emitted[judged].sum().item()
            assert math.isinf(budget) or meter.spent[slot].item() == pytest.approx(nats, abs=1e-5)
            if not asking[request]:
                assert not counts.any()
                continue
            assert counts[0].item() == pytest.approx(nats, abs=1e-5)
            assert counts[1:3].tolist() == [judged.sum(), (judged & accepted).sum()]
            assert counts[4:].tolist() == [(own & fell_back).sum(), (own & change.protected).sum()]
            assert counts[3].item() == pytest.approx(relaxed[judged & accepted].sum().item(), abs=1e-5)
            total += counts
    assert (total > 0).tolist() == [True] * 4 + [budget < math.inf, True]  # it says something of each


def test_a_row_without_any_mass_and_thresholds_at_their_ends() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf], [0.0, -math.inf, -math.inf], [0.0, -math.inf, -math.inf]])
    rows, drafted = torch.arange(3), torch.tensor([0, 0, 0])
    thresholds = torch.tensor([0.0, 1.0, 1.0 - 1e-9], dtype=torch.float64)  # of tokens 0 and 2, of mass 0.5, 1 and 1
    where = Layout([Group(parse_rule("cactus:delta=1"), rows)], rows, torch.zeros(3, dtype=torch.long), 1, None, rows)
    for token_ids, kept_away in ((torch.tensor([2]), [0, 0, 0]), (torch.tensor([0, 2]), [1, 0, 1])):
        tally = Tally()
        one = dataclasses.replace(where, protected=[Protected(rows, token_ids, thresholds)])
        RelaxedStep(one, BudgetMeter(CPU, 1), tally, logits, drafted, None).settle(torch.tensor([2, 2, 2]))
        assert tally.protected == sum(kept_away)


def greedily(logits: torch.Tensor, drafted: torch.Tensor) -> list[list[int]]:
    """Return what vLLM emits of each request at temperature 0, before a bonus token."""
    emitted = []
    for own, tokens in zip(logits.argmax(-1).view(-1, DEPTH).tolist(), drafted.view(-1, DEPTH).tolist(), strict=True):
        kept = next((place for place, pair in enumerate(zip(own, tokens, strict=True)) if len({*pair}) > 1), DEPTH)
        emitted.append(own[: kept + 1])
    return emitted


@kinds_of_draft
@pytest.mark.parametrize("by_mask", [False, True], ids=["by_index", "by_mask"])
@every_rule(GREEDY_SPELLINGS)
def test_at_temperature_0_it_emits_charges_and_reports_what_the_policy_decides(spelling, by_mask, one_hot) -> None:
    """Every other request has the rule, and each between them one that samples."""
    rule, budgets, totals = parse_rule(spelling), [0.3, math.inf, 0.02, 0.3, math.inf], torch.zeros(6).double()
    for seed in range(20):
        logits, probs, _ = batch(seed)
        drafted = torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)
        given, meter, tally = logits.clone(), BudgetMeter(CPU, REQUESTS), Tally()
        where = layout([spelling, "cactus:delta=0.5"], budgets, by_mask)
        protected = [Protected(torch.arange(ROWS), torch.tensor([1, 4]), torch.full((ROWS,), 0.4).double())]
        where = dataclasses.replace(where, protected=protected, reporting=torch.ones(REQUESTS, dtype=torch.bool))
        step = RelaxedStep(where, meter, tally, logits, drafted, None if one_hot else DraftProbs(probs))
        emitted = greedily(relaxed_logits(step, logits), drafted)
        lengths = [
            len(tokens) + (tokens == own) for tokens, own in zip(emitted, drafted.view(-1, DEPTH).tolist(), strict=True)
        ]
        step.settle(torch.tensor(lengths))
        assert torch.equal(logits, given)
        assert tally.added[str(rule)][2] == 0  # what is given up is no divergence
        for request in range(0, REQUESTS, 2):
            own, tokens = slice(request * DEPTH, (request + 1) * DEPTH), emitted[request]
            mass = given[own].double().softmax(-1)[:, [1, 4]].sum(-1)
            expected = plan(rule, given[own], None, drafted[own], limit=budgets[request], relaxable=mass <= 0.4)
            for place, (decision, token) in enumerate(zip(expected.decisions, tokens, strict=False)):
                relaxed = decision.nats > 0
                assert token == (drafted[own][place] if relaxed else given[own][place].argmax())
            visited, slot = len(tokens), REQUESTS - 1 - request
            kept = lengths[request] - 1
            nats = [decision.nats for decision in expected.decisions[:visited]]
            whys = [(expected.fell_back[place], expected.protected[place]) for place in range(visited)]
            judged = [whys[place] == (False, False) for place in range(visited)]
            counts = [
                sum(nats), sum(judged), sum(judged[:kept]), sum(cost > 0 for cost in nats[:kept]),
                sum(fell_back for fell_back, _ in whys), sum(away for _, away in whys),
            ]  # fmt: skip
            assert meter.counts[slot].tolist() == pytest.approx(counts, abs=1e-5)
            if math.isfinite(budgets[request]):
                spent = meter.spent[slot].item()
                assert (spent, spent <= budgets[request]) == (pytest.approx(sum(nats), abs=1e-5), True)
            totals += meter.counts[slot]
    lossless = spelling in ("relaxed_greedy:margin=0", "big_little:rollback=0", "mars:ratio=1")
    assert (totals > 0).tolist() == [not lossless, True, True, not lossless, not lossless, True]


def test_a_rule_for_temperature_0_is_bound_to_the_proposals_that_are_left_and_to_the_greatest_logit() -> None:
    logits = torch.tensor([[4.0, 3.0, 0.0]]).repeat(4, 1)
    drafted, requests = torch.tensor([1, 1, 1, -1]), torch.zeros(4, dtype=torch.long)
    for spelling, kept in (
        ("relaxed_greedy:margin=0.4,per=remaining", [1, 0, 0]),  # 1 nat is given up, and 1.2, 0.8, 0.4 are allowed
        ("relaxed_greedy:margin=0.6,per=remaining", [1, 1, 0]),
        ("mars:ratio=0.7,logits=raw", [1, 1, 1]),  # 3 is more than 0.7 times 4
        ("mars:ratio=0.8,logits=raw", [0, 0, 0]),
    ):
        where = Layout([Group(parse_rule(spelling), torch.arange(4))], requests, torch.arange(4), 4, None, requests[:1])
        step = RelaxedStep(where, BudgetMeter(CPU, 1), None, logits, drafted, None)
        assert relaxed_logits(step, logits).argmax(-1).tolist() == [*kept, 0], spelling


def test_at_temperature_0_only_tokens_that_the_sampler_looks_at_are_compared() -> None:
    logits, drafted = torch.tensor([[2.0, 1.5, 9.0]]), torch.tensor([1])
    zero = torch.zeros(1, dtype=torch.long)
    where = Layout([Group(parse_rule("relaxed_greedy:margin=1"), zero)], zero, zero, 1, None, zero)
    for draft, greatest in ((None, 2), (DraftProbs(torch.ones(1, 2) / 2), 1)):
        step = RelaxedStep(where, BudgetMeter(CPU, 1), None, logits, drafted, draft)
        width = 3 if draft is None else draft.width
        assert relaxed_logits(step, logits)[0, :width].argmax() == greatest
