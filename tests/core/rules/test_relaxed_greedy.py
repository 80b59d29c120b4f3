"""Relaxed greedy acceptance: greedy at margin 0, and never more given up than it says."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from support.tiny_models import tiny_llama

from cactus_decoding import Budget, Fate, FixedLength, ModelDrafter, Request, audit, parse_rule, verify
from cactus_decoding.core.loop import decode
from cactus_decoding.core.policy.decide import Policy
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules.relaxed_greedy import given_up
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams
from cactus_decoding.core.types import Proposal, StepRows
from cactus_decoding.engines.transformers.cached_model import CachedModel

PROMPT = [1, 2, 3]
LENGTH = 40


def flat_target():
    """A target whose rows are so flat that other tokens than the first are worth keeping."""
    return tiny_llama(0, sharpness=2.0)


def run(rule: str, budget: Budget | None = None, seed: int = 0):
    """Decode with a draft that often disagrees but seldom by much."""
    target, greedy, plain = CachedModel(flat_target()), SamplingParams(temperature=0.0), SamplingParams()
    request = Request(rule=rule, budget=budget, sampling=greedy)
    verifier = request.verifier(lambda x, _: greedy(x), lambda x, _: plain(x))
    steps = decode(
        target,
        ModelDrafter(tiny_llama(1)),
        PROMPT,
        verifier,
        lambda x, _: greedy(x),
        draft_length=FixedLength(4),
        max_length=LENGTH,
        stopping_criteria=lambda ids: False,
        generator=torch.Generator().manual_seed(seed),
    )
    return list(steps)


def tokens_of(steps) -> list[int]:
    return [token for step in steps for token in step.token_ids]


@torch.no_grad()
def gaps(token_ids: list[int]) -> list[float]:
    """Return the log-probability that each token gives up, from one pass of the target over the whole response."""
    logits = flat_target()(torch.tensor([[*PROMPT, *token_ids]])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return [(row.max() - row[token]).item() for row, token in zip(logits, token_ids, strict=True)]


def greedy_tokens() -> list[int]:
    return tokens_of(run("lossless"))


def test_margin_zero_is_greedy_decoding() -> None:
    for rule in ("relaxed_greedy:margin=0", "relaxed_greedy:margin=0,top=3", "relaxed_greedy:margin=5,top=1",
                 "relaxed_greedy:margin=0,per=remaining", "big_little:rollback=0", "mars:ratio=1",
                 "mars:ratio=1,logits=raw"):  # fmt: skip
        steps = run(rule)
        assert tokens_of(steps) == greedy_tokens()
        assert sum(step.num_relaxed for step in steps) == 0
        assert sum(visit.nats for step in steps for visit in step.visits) == 0


def test_margins_are_of_the_law_alone_and_keep_no_third_choice() -> None:
    logits = torch.tensor([2.0, 1.5, 1.4, -3.0, -4.0]).double()
    rule, every = parse_rule("mars:ratio=0.7"), torch.arange(5)
    for shift in (0.0, 40.0, -40.0):
        kept = rule.judge((logits + shift).softmax(-1), None, every).relaxed_prob
        assert kept.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    raw = [(logits[1] + shift > 0.9 * (logits[0] + shift)).item() for shift in (0.0, 40.0)]
    assert raw == [False, True]  # the same law
    strict = parse_rule("mars:ratio=0.9").judge(logits.softmax(-1), None, every).relaxed_prob
    assert strict.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def judged(rule: str, logits: torch.Tensor, drafted: list[int]) -> list[bool]:
    """Return which proposals of a chain a request's policy would keep, each by itself."""
    proposal = Proposal(drafted, None)
    rows = StepRows(
        logits, drafted, proposal, lambda x, _: SamplingParams(temperature=0.0)(x), lambda x, _: x.softmax(-1)
    )
    positions = [Position(rows, node) for node in range(-1, len(drafted) - 1)]
    policy = Policy(parse_rule(rule))
    kept = []
    for position, token in zip(positions, drafted, strict=True):
        here = policy.decide(policy.begin(), position).rule
        kept.append(position.judge(here, None, torch.tensor([token])).relaxed_prob.item() == 1)
    return kept


def test_a_margin_per_remaining_proposal_is_that_of_its_place() -> None:
    logits = torch.randn(400, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drafted = torch.randint(6, (400, 4), generator=torch.Generator().manual_seed(1))
    regret = logits[:, :4].amax(-1) - logits[:, :4].gather(-1, drafted.unsqueeze(-1)).squeeze(-1)
    left = torch.tensor([4, 3, 2, 1])  # K - i
    found = [
        judged("relaxed_greedy:margin=0.3,per=remaining", *each) for each in zip(logits, drafted.tolist(), strict=True)
    ]
    assert torch.equal(torch.tensor(found), regret / left <= 0.3)
    for wrong in (left - 1, left.flip(0), torch.ones(4)):  # of those behind, of the place itself, of the token
        assert not torch.equal(torch.tensor(found), regret <= 0.3 * wrong)


def test_raw_logits_are_compared_as_the_model_gave_them() -> None:
    generator, ratio = torch.Generator().manual_seed(0), 0.8
    logits = torch.randn(400, 2, 5, generator=generator, dtype=torch.float64) * 2 + torch.randn(
        400, 1, 1, generator=generator
    )
    drafted = torch.randint(5, (400, 1), generator=generator)
    first, second = logits[:, 0].topk(2).values.unbind(-1)
    own = logits[:, 0].gather(-1, drafted)[:, 0]
    expected = (own == first) | ((own == second) & (second > ratio * first))
    found = [judged(f"mars:ratio={ratio},logits=raw", *each)[0] for each in zip(logits, drafted.tolist(), strict=True)]
    mean = [judged(f"mars:ratio={ratio}", *each)[0] for each in zip(logits, drafted.tolist(), strict=True)]
    assert found == expected.tolist() != mean
    for shift, kept in ((0.0, False), (40.0, True)):
        row = torch.tensor([2.0, 1.5, 1.4, -3.0, -4.0]).double() + shift
        assert judged("mars:ratio=0.9,logits=raw", row.expand(2, -1), [1]) == [kept]  # the same law


def test_rules_that_need_more_than_rows_are_refused_where_there_is_no_more() -> None:
    row = torch.tensor([[0.6, 0.4], [0.6, 0.4]])
    for rule in ("relaxed_greedy:margin=1,per=remaining", "mars:ratio=0.9,logits=raw"):
        for ask in (lambda: verify(rule, row, None, torch.tensor([0])), lambda: audit(rule, row, row)):  # noqa: B023
            with pytest.raises(ValueError, match="which rows of probabilities do not tell: it works where a text is"):
                ask()


def relaxed_of(steps) -> list[int]:
    return [step.num_relaxed for step in steps]


def test_a_cap_counts_the_tokens_of_a_step_and_falls_back_behind_them() -> None:
    rule = "relaxed_greedy:margin=5"
    free, capped, none = (run(rule, Budget(math.inf, max_relaxed=most)) for most in (None, 1, 0))
    assert max(relaxed_of(free)) > 1  # which a count over the response, or none, would let pass
    assert max(relaxed_of(capped)) == 1 < sum(relaxed_of(capped))
    assert any(step.num_fell_back for step in capped)
    assert tokens_of(none) == greedy_tokens()
    assert tokens_of(run(rule, Budget(math.inf, max_relaxed=9))) == tokens_of(free)


def near_ties(dtype: torch.dtype, vocabulary: int) -> list[torch.Tensor]:
    """Return rows of logits whose second token is a step of the type, or a few, below the third; and equal ones."""
    made = []
    for start in (1.0, -3.0, 50.0):
        for steps in (0, 1, 2, 5):
            row = torch.full((vocabulary,), start - 30, dtype=dtype)
            row[2] = row[3] = start
            for _ in range(steps):
                row[2] = torch.nextafter(row[2], torch.tensor(-math.inf, dtype=dtype))
            made.append(row if steps else row.flip(0))
    return made


@pytest.mark.parametrize("vocabulary", [6, LARGE_VOCABULARY + 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rule", ["relaxed_greedy:margin=1", "mars:ratio=0.1", "big_little:rollback=3"])
def test_a_near_tie_is_relaxed_and_so_counts_and_costs(rule: str, dtype: torch.dtype, vocabulary: int) -> None:
    greedy, plain = SamplingParams(temperature=0.0), SamplingParams()
    for row in near_ties(dtype, vocabulary):
        best = int(row.argmax())
        second = int(row.index_fill(0, torch.tensor([best]), -math.inf).argmax())
        proposal = Proposal([second, second, second], None)

        def step(budget: Budget | None, proposal=proposal, row=row):
            request = Request(rule=rule, budget=budget, sampling=greedy)
            verifier = request.verifier(lambda x, _: greedy(x), lambda x, _: plain(x), greedy)
            return verifier(verifier.begin(), row.expand(4, -1), [0, *proposal.token_ids], proposal, None)

        for budget, most in ((None, 3), *((Budget(math.inf, max_relaxed=most), most) for most in (3, 2, 1, 0))):
            state, outcome = step(budget)
            assert len(outcome.path) == outcome.num_relaxed == most
            assert outcome.next_token == best
            assert [visit.nats > 0 for visit in outcome.visits] == [True] * most + [False] * (most < 3)
            assert outcome.num_fell_back == (most < 3)
            assert 0 < state.spent < 1e-4 if most else state.spent == 0
        for nats in (0.0, 5e-324):
            state, outcome = step(Budget(nats))
            assert (outcome.path, outcome.next_token, outcome.num_fell_back, state.spent) == ([], best, 1, 0)


def test_what_is_given_up_is_nothing_for_the_likeliest_token_alone() -> None:
    for best in (1.0, 0.5, 0.3, 1e-3, 1e-300, 5e-324):
        for steps in range(1, 5):
            row = torch.tensor([best] * 2, dtype=torch.float64)
            for _ in range(steps):
                row[1] = torch.nextafter(row[1], torch.tensor(0.0, dtype=torch.float64))
            cost = given_up(row, torch.tensor([0, 1]))
            assert cost[0] == 0 < cost[1]
            if best > 1e-300:
                exact = float(Fraction(row[0].item()) / Fraction(row[1].item()) - 1)  # but for its square
                assert cost[1].item() == pytest.approx(exact, rel=1e-12)
    row = torch.tensor([0.9, 0.4499, 0.4501, 1e-310, 0.0], dtype=torch.float64)
    gaps = given_up(row, torch.arange(5)).tolist()
    assert gaps == pytest.approx([0.0, *(math.log(0.9) - math.log(x) for x in row[1:4].tolist()), math.inf], rel=1e-6)


def test_a_rollback_keeps_what_is_likely_enough_whatever_is_likeliest() -> None:
    tokens = tokens_of(run("big_little:rollback=2"))
    assert tokens != greedy_tokens()
    lost = gaps(tokens)
    assert 0 < max(lost) <= 2 + 1e-5
    rows = torch.tensor([[0.5, 0.2, 0.3], [0.9, 0.06, 0.04]])
    kept = parse_rule("big_little:rollback=1.7").judge(rows, None, torch.tensor([[1], [1]])).relaxed_prob
    assert kept.tolist() == [[1.0], [0.0]]
    wrong = parse_rule("relaxed_greedy:margin=0.8").judge(rows, None, torch.tensor([[1], [1]])).relaxed_prob
    assert wrong.tolist() != kept.tolist()  # a gap is not a cross-entropy


@pytest.mark.parametrize("margin", [1.0, 2.0, 3.0])
def test_no_token_gives_up_more_than_the_margin_and_the_meter_counts_it(margin: float) -> None:
    steps = run(f"relaxed_greedy:margin={margin}")
    tokens = tokens_of(steps)
    given_up = gaps(tokens)
    assert max(given_up) <= margin + 1e-5
    assert sum(visit.nats for step in steps for visit in step.visits) == pytest.approx(
        sum(given_up), abs=1e-5
    )  # rotary tables: float32
    fates = [fate for step in steps for fate in step.fates]
    for fate, gap in zip(fates, given_up, strict=True):
        assert (fate is Fate.RELAXED) == (gap > 0)


def test_a_wider_margin_accepts_more() -> None:
    runs = [run(f"relaxed_greedy:margin={margin}") for margin in (0, 1, 4)]
    accepted = [sum(step.num_accepted for step in steps) / len(steps) for steps in runs]
    assert accepted[0] < accepted[1] < accepted[2]


def test_only_the_top_tokens_are_relaxed() -> None:
    rows = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]])
    every = torch.arange(4).expand(2, 4)
    accepted = parse_rule("relaxed_greedy:margin=10,top=2").judge(rows, None, every).relaxed_prob
    assert accepted.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]  # ties count as equally high
    assert parse_rule("relaxed_greedy:margin=0").judge(rows, None, every).relaxed_prob.tolist() == [[1, 0, 0, 0]] * 2
    assert parse_rule("relaxed_greedy:margin=10,top=9").judge(rows, None, every).relaxed_prob.min() == 1


def test_excluded_tokens_are_never_accepted() -> None:
    row = torch.tensor([[0.6, 0.4, 0.0]])
    accepted = parse_rule("relaxed_greedy:margin=700").judge(row, None, torch.tensor([[0, 1, 2]])).relaxed_prob
    assert accepted.tolist() == [[1, 1, 0]]
    with pytest.raises(ValueError, match="margin must be in"):
        parse_rule("relaxed_greedy:margin=inf")


@pytest.mark.parametrize("limit", [0.0, 0.5, 2.0])
def test_a_budget_limits_what_an_answer_gives_up(limit: float) -> None:
    steps = run("relaxed_greedy:margin=3", Budget(nats=limit))
    assert sum(gaps(tokens_of(steps))) <= limit + 1e-5
    unlimited = run("relaxed_greedy:margin=3")
    assert sum(gaps(tokens_of(unlimited))) > 2.0
    assert sum(visit.fell_back for step in steps for visit in step.visits) > 0
    if limit == 0:
        assert tokens_of(steps) == greedy_tokens()
