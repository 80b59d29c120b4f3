"""What answers cost, read from outcomes: as a budget measures it, through budgets and paces, and at temperature 0."""

from __future__ import annotations

import math

import pytest

from cactus_decoding import Budget, Request, SamplingParams, generate, load_pair, stream
from cactus_decoding.core.audit import audit
from cactus_decoding.core.rules import Lossless
from cactus_decoding.lab.evaluation.engines.engine import AuditedCosts, TransformersEngine
from cactus_decoding.zoo.word_problems import word_problems

PROMPT = next(word_problems("test", seed=0)).prompt

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.fixture(scope="module")
def pair():
    return load_pair()


CHAIN = Request(num_speculative_tokens=5, max_new_tokens=40, sampling=SamplingParams(top_p=0.9), seed=7)
TREE = Request(tree="static=3.2.1", max_new_tokens=40, seed=7)
RULES = ("cactus:delta=1.0", "clamped:width=2.0", "ensemble:weight=0.5")


@pytest.mark.parametrize(
    ("usual", "rule"), [*((CHAIN, rule) for rule in (*RULES, "typical")), *((TREE, rule) for rule in RULES)]
)
def test_the_audit_is_what_an_unlimited_budget_measures(pair, usual, rule):
    audited = audited_and_measured(pair, usual.replace(rule=rule))
    assert 0 < audited.tv < audited.metered
    assert audited.max_log_ratio > 0


def audited_and_measured(pair, request) -> AuditedCosts:
    """Return what an answer costs, once it is what a budget without limit measures of the same answer."""
    answer = TransformersEngine(pair).answer(PROMPT, request)
    response = generate(pair, PROMPT, request.replace(budget=Budget(math.inf)))
    assert answer.text == response.text
    assert answer.audited.metered == response.metrics.metered > 0
    assert answer.audited.nats == pytest.approx(response.metrics.nats, rel=1e-6, abs=1e-9)
    return answer.audited


@pytest.mark.parametrize("budget", [Budget(0.05), Budget(0.2, expected_tokens=60)], ids=["greedy", "paced"])
def test_the_audit_takes_what_was_charged_by_the_rule_that_judged(pair, budget):
    request = Request("clamped:width=2.0", budget, max_new_tokens=60, seed=3)
    response, costs = stream(pair.twin(), PROMPT, request), AuditedCosts()  # its caches are empty, as those below are
    rules, tv, nats, ratio = set(), 0.0, 0.0, 0.0
    for outcome in response:
        costs.add(outcome)
        for visit in outcome.visits:
            rules.add(str(visit.rule))
            if not isinstance(visit.rule, Lossless):
                result = audit(visit.rule, visit.target_probs[None], visit.draft_probs[None])
                tv, nats = tv + result.tv.item(), nats + result.kl.item()
                ratio = max(ratio, result.max_log_ratio.item())
    assert costs.metered == response.metrics.metered
    assert costs.nats == pytest.approx(response.metrics.nats, rel=1e-14)
    assert costs.nats <= budget.limit
    assert len(rules) > (2 if budget.expected_tokens else 1)
    assert (costs.tv, costs.max_log_ratio) == pytest.approx((tv, ratio), rel=1e-6)
    assert costs.nats == pytest.approx(nats, rel=1e-3)  # the meter does not normalise float32 rows, the audit does
    answer = TransformersEngine(pair.twin()).answer(PROMPT, request)
    assert answer.text == response.text
    assert answer.audited.nats == pytest.approx(response.metrics.nats, rel=1e-6, abs=1e-12)
    assert answer.audited.nats <= budget.limit * (1 + 1e-9)


def test_a_draft_without_rows_is_audited_as_one_that_is_sure():
    audited_and_measured(load_pair(draft="ngram"), Request("cactus:delta=1.0", max_new_tokens=40, seed=3))


def test_lossless_costs_nothing_and_no_audit_leaves_the_columns_out(pair):
    request = Request(max_new_tokens=20, seed=1)
    audited = TransformersEngine(pair).answer(PROMPT, request)
    assert (audited.audited.nats, audited.audited.tv, audited.audited.max_log_ratio) == (0, 0, 0)
    assert audited.audited.metered > 0
    bare = TransformersEngine(pair, audited=False).answer(PROMPT, request)
    assert (bare.text, bare.audited) == (audited.text, None)


def test_relaxed_greedy_is_metered_in_log_probability(pair):
    request = Request("relaxed_greedy:margin=3.0", sampling=SamplingParams(temperature=0.0), max_new_tokens=40, seed=1)
    answer = TransformersEngine(pair).answer(PROMPT, request)
    assert answer.audited.tv == answer.metrics.relaxed
    assert answer.audited.max_log_ratio == (math.inf if answer.metrics.relaxed else 0.0)
    assert 0 <= answer.audited.nats <= 3.0 * max(answer.metrics.relaxed, 1)
