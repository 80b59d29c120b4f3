"""How many tokens are proposed: the choices, what they learn, and that none of them changes the emitted law."""

from __future__ import annotations

import random

import pytest
import torch
from support.loop_runs import PROMPT, decided, run
from support.pass_times import PASS_TIMES
from support.tiny_models import tiny_llama
from support.tree_enumeration import TREE_SCHEMES, LazyTree, Models, distance, product_law, respond, uniform_shape

from cactus_decoding import (
    DRAFT_LENGTHS,
    AdaptiveLength,
    ConfidenceStop,
    DraftLength,
    FixedLength,
    ModelDrafter,
    NgramDrafter,
    generate,
    load_pair,
    parse_rule,
)
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.drafting.timing import StepCosts
from cactus_decoding.engines.transformers.cached_model import CachedModel

EVERY_LENGTH = [
    "4",
    "confidence:threshold=0.5,max_draft_tokens=4",
    "adaptive:max_draft_tokens=4,draft_cost=0.2,token_cost=0.02",
    f"auto:max_draft_tokens=4,profile={PASS_TIMES}",
]


# What is asked for


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, FixedLength(5)),
        ("6", FixedLength(6)),
        (" 0 ", FixedLength(0)),
        ("fixed:max_draft_tokens=3", FixedLength(3)),
        ("confidence", ConfidenceStop()),
        ("confidence:threshold=0.25,max_draft_tokens=5", ConfidenceStop(5, 0.25)),
        ("adaptive:max_draft_tokens=7", AdaptiveLength(7)),
        (ConfidenceStop(3), ConfidenceStop(3)),
    ],
)
def test_numbers_objects_and_spellings(given, expected):
    assert as_draft_length(given) == expected
    assert isinstance(as_draft_length(given), DraftLength)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (-1, ValueError, "num_speculative_tokens must be at least 0, but is -1"),
        ("-2", ValueError, "num_speculative_tokens must be at least 0, but is -2"),
        (True, TypeError, "must be an integer, a draft length or its spelling, but is True"),
        (6.0, TypeError, "must be an integer, a draft length or its spelling, but is 6.0"),
        (None, TypeError, "must be an integer, a draft length or its spelling, but is None"),
        (FixedLength, TypeError, "must be an integer, a draft length or its spelling"),
        ("six", ValueError, "unknown draft length 'six'; known are fixed, confidence, adaptive"),
        ("confidence:k=3", ValueError, "parameters of confidence are: max_draft_tokens, threshold"),
        ("confidence:threshold=2", ValueError, r"threshold must be in \[0, 1\], but is 2.0"),
        ("confidence:max_draft_tokens=2.5", ValueError, "max_draft_tokens must be an integer, but is '2.5'"),
        ("adaptive:max_draft_tokens=0", ValueError, "max_draft_tokens must be at least 1, but is 0"),
        ("adaptive:draft_cost=0.1", ValueError, "draft_cost and token_cost go together"),
        ("adaptive:draft_cost=-1,token_cost=0", ValueError, r"must be in \[0, inf\), but is -1.0"),
    ],
)
def test_what_is_no_draft_length_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        as_draft_length(given)


def test_confidence_is_the_probability_of_the_likeliest_token():
    logits = torch.tensor([2.0, 1.0, -1.0, -torch.inf])
    p = float(logits.softmax(-1).max())
    assert ConfidenceStop(threshold=p - 1e-6).should_continue(logits)
    assert not ConfidenceStop(threshold=p + 1e-6).should_continue(logits)
    assert ConfidenceStop(threshold=0).should_continue(logits)


# The law, by enumeration of every draft


def stopping_tree(stop: ConfidenceStop, discards: bool) -> type[LazyTree]:
    """Return chains that end after a row that is not sure, or, if it is discarded, before a token is drawn from it."""

    class Stopping(LazyTree):
        def _grow(self, node: int):
            before = self.tokens_to(node)
            unsure = before if discards else before[:-1]
            asked = discards or bool(before)
            if asked and not stop.should_continue(self._models((*self._text, *unsure))[1].log()):
                return None
            return super()._grow(node)

    return Stopping


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("discards", [False, True])
def test_a_confidence_stop_leaves_the_law_alone(threshold, discards):
    for seed in range(4):
        models = Models(3, seed)
        grow = stopping_tree(ConfidenceStop(threshold=threshold), discards)
        law = respond(TREE_SCHEMES["token"], parse_rule("lossless"), models, uniform_shape(3, 0, 1), 4, grow=grow).law
        assert distance(law, product_law(lambda text, models=models: models(text)[0], 3, 4)) < 1e-12


# The loop over real models


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return CachedModel(tiny_llama(0))


@pytest.fixture(scope="module")
def draft():
    return tiny_llama(1)


def test_an_unsure_draft_proposes_less(target, draft):
    sharp = [step.num_drafted for step in run(target, ModelDrafter(draft), k=ConfidenceStop(5, 0.0), length=60)]
    unsure = [step.num_drafted for step in run(target, ModelDrafter(draft), k=ConfidenceStop(5, 0.9), length=60)]
    assert set(sharp[:-3]) == {5}
    assert set(unsure) > {1}
    assert sum(unsure) / len(unsure) < 4


def test_an_unsure_row_is_discarded_before_a_token_is_drawn_from_it(target, draft):
    stop = ConfidenceStop(5, 0.5, "discard")
    for seed in range(4):
        steps, drafter = run(target, ModelDrafter(draft), k=stop, length=40, seed=seed), ModelDrafter(draft)
        counts, text = [step.num_drafted for step in steps], list(PROMPT)
        assert 0 in counts
        for step in steps[:-5]:  # the last ones end where the response does
            rows = [drafter.read([*text, *step.proposal.token_ids[:i]], 1)[0] for i in range(step.num_drafted + 1)]
            assert all(stop.should_continue(row) for row in rows[: step.num_drafted])
            assert step.num_drafted == 5 or not stop.should_continue(rows[-1])
            text += step.token_ids
    keeping = run(target, ModelDrafter(draft), k=ConfidenceStop(5, 0.5), length=40)
    assert min(step.num_drafted for step in keeping[:-5]) > 0  # the wrong one here: its token too


def test_a_drafter_forgets_the_draft_length_of_the_last_response(target, draft):
    drafter = ModelDrafter(draft)
    fixed = decided(run(target, drafter, k=4))
    run(target, drafter, k=ConfidenceStop(4, 1.0))
    assert decided(run(target, drafter, k=4)) == fixed


def test_text_lookup_counts_as_sure(target):
    for length in (ConfidenceStop(4, 1.0), AdaptiveLength(4, 0.0, 0.0)):
        fixed = decided(run(target, NgramDrafter(), k=4, length=60))
        assert decided(run(target, NgramDrafter(), k=length, length=60)) == fixed


def test_given_costs_make_a_seed_repeatable(target, draft):
    spelled = EVERY_LENGTH[2]
    first, again = (run(target, ModelDrafter(draft), k=as_draft_length(spelled), seed=5, length=60) for _ in range(2))
    assert decided(first) == decided(again)
    assert {step.num_drafted for step in first} > {1}


@pytest.mark.parametrize("name", DRAFT_LENGTHS)
def test_generate_takes_any_draft_length(name):
    length = f"{name}:max_draft_tokens=3"
    response = generate(
        load_pair(), "Question: Tom has 4 pens.", num_speculative_tokens=length, seed=0, max_new_tokens=9
    )
    assert 0 < response.metrics.drafted <= 3 * response.metrics.steps


# What the adaptive length learns


def step_of(length: AdaptiveLength, sureness: list[float], chances: list[float], rng: random.Random) -> tuple[int, int]:
    """Take one step in a world where proposal i comes from a row of some sureness and is kept with some chance."""
    limit, drafted, kept = length.begin_step(), 0, 0
    for sure in sureness[:limit]:
        drafted += 1
        rest = (1 - sure) / 99
        if not length.should_continue(torch.tensor([sure] + [rest] * 99).log()):
            break
    length.end_draft(drafted)
    while kept < drafted and rng.random() < chances[kept]:
        kept += 1
    length.end_step(kept)
    return drafted, kept


def best_fixed_rate(chance: float, draft_cost: float, token_cost: float, most: int) -> tuple[float, int]:
    """Return the most tokens per second that a fixed number of proposals reaches, and that number."""
    return max(
        (sum(chance**i for i in range(k + 1)) / (1 + k * (draft_cost + token_cost)), k) for k in range(1, most + 1)
    )


@pytest.mark.parametrize(
    ("chance", "draft_cost", "token_cost"),
    [(0.9, 0.05, 0.01), (0.8, 0.1, 0.0), (0.6, 0.1, 0.05), (0.3, 0.2, 0.0), (0.95, 0.3, 0.1), (0.99, 0.001, 0.0)],
)
def test_it_finds_the_best_number_where_all_rows_are_alike(chance, draft_cost, token_cost):
    length, rng = AdaptiveLength(16, draft_cost, token_cost), random.Random(0)
    steps = [step_of(length, [0.75] * 16, [chance] * 16, rng) for _ in range(4000)][1000:]
    tokens_emitted = sum(kept + 1 for _, kept in steps)
    seconds = sum(1 + drafted * (draft_cost + token_cost) for drafted, _ in steps)
    best, number = best_fixed_rate(chance, draft_cost, token_cost, 16)
    # 3000 steps: the rate itself is known to about 1 percent
    assert tokens_emitted / seconds > 0.97 * best
    assert abs(sum(drafted for drafted, _ in steps) / len(steps) - number) < 1.5


def test_it_gains_from_rows_that_differ_in_sureness():
    length, rng, world = AdaptiveLength(16, 0.15, 0.02), random.Random(0), random.Random(1)
    tokens_emitted = seconds = 0.0
    for i in range(6000):
        sure = [world.random() < 0.8 for _ in range(16)]
        drafted, kept = step_of(length, [0.95 if s else 0.35 for s in sure], [0.97 if s else 0.3 for s in sure], rng)
        if i >= 1000:
            tokens_emitted, seconds = tokens_emitted + kept + 1, seconds + 1 + 0.17 * drafted
    chance = 0.8 * 0.97 + 0.2 * 0.3
    assert tokens_emitted / seconds > 1.08 * best_fixed_rate(chance, 0.15, 0.02, 16)[0]


class World:
    """A clock that a step moves on: drafting, then verifying."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def take_step(costs: StepCosts, world: World, k: int, tokens_emitted: int, draft: float, verify: float) -> None:
    costs.begin_step()
    world.now += draft
    costs.end_draft(k)
    world.now += verify
    costs.end_step(tokens_emitted)
    world.now += 1000.0  # what happens between steps is nobody's fault


def test_costs_are_measured_without_the_prompt():
    world = World()
    costs = StepCosts(clock=world)
    costs.begin_response()
    take_step(costs, world, 3, 2, 50.0, 70.0)  # reads the prompt
    assert costs.rate == costs.of_a_proposal == 0
    for k in (1, 5, 2, 4):
        take_step(costs, world, k, 2, 0.25 * k, 2.0 + 0.125 * k)
    assert costs.of_a_proposal == pytest.approx(0.25 + 0.125, rel=1e-9)
    assert costs.rate == pytest.approx(2 / (2 + 0.375 * 3), rel=0.02)  # later steps count a little more


def test_with_steps_of_one_length_only_drafting_is_known_to_cost():
    world = World()
    costs = StepCosts(clock=world)
    for _ in range(5):
        costs.begin_step()
        take_step(costs, world, 3, 2, 0.75, 2.0)
    assert costs.of_a_proposal == pytest.approx(0.25)


@pytest.mark.parametrize("k", [0, 1, 8])
def test_an_interruption_hardly_changes_what_proposals_cost(k: int):
    world = World()
    costs = StepCosts(clock=world)
    for i in range(200):
        drafted = (0, 1, 2, 4, 8)[i % 5]
        take_step(costs, world, drafted, 2, 0.25 * drafted, 2.0 + 0.125 * drafted)
    take_step(costs, world, k, 2, 0.25 * k + 300.0, 2.0 + 0.125 * k + 300.0)  # the machine did something else
    assert costs.of_a_pass == pytest.approx(0.25, rel=0.25)
    assert costs.of_a_node() == pytest.approx(0.125, rel=0.6)


def test_a_proposal_costs_no_more_than_the_first_token():
    world = World()
    costs = StepCosts(clock=world)
    for k, verify in ((1, 2.0), (2, 9.0)):  # noise alone says 7 for one more
        take_step(costs, world, k, 2, 0.25 * k, verify)
    assert costs.of_a_node() < 2.5


def test_given_costs_are_not_measured():
    world = World()
    costs = StepCosts(0.25, 0.125, world)
    costs.begin_response()
    take_step(costs, world, 2, 3, 50.0, 70.0)
    assert costs.of_a_proposal == 0.375
    assert costs.rate == pytest.approx(3 / (1 + 2 * 0.375))
