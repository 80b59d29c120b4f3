"""A memory of rejections: what it makes of responses, by enumeration and by a second way to work it out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from support.exact_enumeration import Law
from support.tree_enumeration import Models, distance, divergence, product_law, respond, uniform_shape

from cactus_decoding import Budget, Request, generate, load_pair, parse_rule, stream
from cactus_decoding.core.policy.decide import Policy
from cactus_decoding.core.policy.relaxation import Pair, RejectionMemory, RelaxationPolicy, relaxation_policy
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.zoo.word_problems import word_problems

EXACT, FAR = 1e-12, 1e-3
RULE, WEIGHT = parse_rule("ensemble:weight=0.6"), 0.6
LENGTH, PROPOSALS = 5, 2
MEMORIES = [RejectionMemory(recurring=1), RejectionMemory(recurring=2), RejectionMemory(recurring=1, ratio=0.4)]
Seen = frozenset[tuple[Pair, int]]
Decides = Callable[[dict[Pair, int], Pair, int, list[float]], bool]


def enumerated(memory: RejectionMemory, models: Models, budget: float | None = None) -> tuple[Law, float]:
    fitted = RelaxationPolicy(memory=memory).fit(None, models.vocabulary)
    policy = Policy(RULE, None if budget is None else Budget(nats=budget), fitted)
    law, spent, _ = respond(VERIFICATIONS["token"].function, policy, models, uniform_shape(PROPOSALS, 0, 1), LENGTH)
    return law, spent


def kept_often(memory: RejectionMemory) -> Decides:
    def decides(seen: dict[Pair, int], pair: Pair, _: int, target: list[float]) -> bool:
        return seen.get(pair, 0) >= memory.recurring and target[pair[0]] >= memory.ratio * target[pair[1]]

    return decides


def by_the_drafted_token(memory: RejectionMemory) -> Decides:
    """Decide wrongly: look up the drafted token in the place of the draft's likeliest."""

    def decides(seen: dict[Pair, int], pair: Pair, drafted: int, target: list[float]) -> bool:
        return kept_often(memory)(seen, (drafted, pair[1]), drafted, target)

    return decides


def law_of(models: Models, decides: Decides, *, forgets: bool = False) -> Law:
    """Return the distribution of responses by plain numbers: token after token, with what was rejected so far."""
    law: Law = defaultdict(float)
    unfinished: dict[tuple[tuple[int, ...], Seen], float] = {((), frozenset()): 1.0}
    while unfinished:
        longer: dict[tuple[tuple[int, ...], Seen], float] = defaultdict(float)
        for (text, seen), chance in unfinished.items():
            for tokens, rejected, share in step(
                models, text, dict(seen), decides, min(PROPOSALS, LENGTH - len(text) - 1)
            ):
                after, whole = dict(seen), (*text, *tokens)
                if rejected is not None and rejected[0] != rejected[1]:
                    after[rejected] = after.get(rejected, 0) + 1
                if len(whole) == LENGTH:
                    law[whole] += chance * share
                else:
                    longer[whole, frozenset() if forgets else frozenset(after.items())] += chance * share
        unfinished = longer
    return law


def step(
    models: Models, text: tuple[int, ...], seen: dict[Pair, int], decides: Decides, left: int
) -> Iterator[tuple[tuple[int, ...], Pair | None, float]]:
    """Yield the tokens of a step, the pair at which a proposal was rejected, and how likely that is."""
    target, draft = (row.tolist() for row in models(text))
    if not left:
        yield from (((token,), None, q) for token, q in enumerate(target) if q)
        return
    pair = draft.index(max(draft)), target.index(max(target))
    for drafted, p in enumerate(draft):
        if not p:
            continue
        h = target
        if decides(seen, pair, drafted, target):
            h = [WEIGHT * b + (1 - WEIGHT) * a if a else 0.0 for a, b in zip(target, draft, strict=True)]
        kept = min(1.0, h[drafted] / p)
        if kept:
            for tokens, rejected, share in step(models, (*text, drafted), seen, decides, left - 1):
                yield (drafted, *tokens), rejected, p * kept * share
        residual = [max(a - b, 0.0) for a, b in zip(target, draft, strict=True)]
        for token, weight in enumerate(residual):
            if weight and kept < 1:
                yield (token,), pair, p * (1 - kept) * weight / sum(residual)


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_responses_have_the_distribution_of_the_definition(memory: RejectionMemory) -> None:
    moved = 0.0
    for seed in (18, 28, 29):
        models = Models(2, seed)
        law, _ = enumerated(memory, models)
        assert sum(law.values()) == pytest.approx(1, abs=EXACT)
        assert distance(law, law_of(models, kept_often(memory))) < EXACT
        moved = max(moved, distance(law, product_law(lambda text, m=models: m(text)[0], 2, LENGTH)))
    assert moved > FAR  # it does relax something


def test_a_memory_that_forgets_or_looks_at_the_drafted_token_is_noticed() -> None:
    memory = MEMORIES[0]
    right = [(models, enumerated(memory, models)[0]) for models in (Models(2, 18), Models(2, 28))]
    for wrong in ({"decides": kept_often(memory), "forgets": True}, {"decides": by_the_drafted_token(memory)}):
        assert max(distance(law, law_of(models, **wrong)) for models, law in right) > FAR


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_budgets_bound_responses_though_the_memory_depends_on_what_was_drafted(memory: RejectionMemory) -> None:
    for seed in (18, 28, 29):
        models = Models(2, seed)
        target = product_law(lambda text, m=models: m(text)[0], 2, LENGTH)
        for budget in (0.02, float("inf")):
            law, spent = enumerated(memory, models, budget)
            assert divergence(law, target) <= spent + EXACT
            assert spent <= budget


def test_a_memory_that_never_fills_is_lossless() -> None:
    models = Models(2, 28)
    law, spent = enumerated(RejectionMemory(recurring=LENGTH), models, float("inf"))
    assert distance(law, product_law(lambda text: models(text)[0], 2, LENGTH)) < EXACT
    assert spent == 0


@pytest.fixture(scope="module")
def pair():
    return load_pair(draft="bundled:worded")


def test_at_temperature_zero_only_pairs_that_were_rejected_before_are_relaxed(pair: Any) -> None:
    asked = {"rule": "relaxed_greedy:margin=1.2", "temperature": 0.0, "num_speculative_tokens": 8}
    relaxed = plain = 0
    for problem in [*islice(word_problems("validation", seed=4), 10)][4:]:
        seen: dict[Pair, int] = {}
        for outcome in stream(pair, problem.prompt, recurring=1, recurring_ratio=0.3, **asked):
            new = None
            for visit in outcome.visits:
                row = outcome.rows.untempered_of(visit.node)
                here = visit.token_id, int(row.argmax())
                if visit.relaxed:
                    relaxed += 1
                    assert seen.get(here, 0) >= 1
                    assert row[here[0]] >= 0.3 * row[here[1]]
                new = None if visit.accepted else here
            if new is not None:
                seen[new] = seen.get(new, 0) + 1
        plain += generate(pair, problem.prompt, **asked).metrics.relaxed
    assert 0 < relaxed < plain


def test_what_it_does_not_go_with_is_refused() -> None:
    with pytest.raises(ValueError, match="recurring relaxes by what was rejected before: use verification='token'"):
        Request.from_dict({"rule": "clamped:width=1", "verification": "block", "recurring": 2})
    Request.from_dict({"verification": "block", "recurring": 2})  # lossless anyway
    with pytest.raises(ValueError, match="recurring must be at least 1, but is 0"):
        relaxation_policy(recurring=0)
    with pytest.raises(ValueError, match="recurring_ratio"):
        relaxation_policy(recurring_ratio=0.5)
