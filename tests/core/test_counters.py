"""What is counted of outcomes, and that it is written as Prometheus reads it."""

import math

import pytest
from prometheus_client import CollectorRegistry
from support.counted import CUTS, Told, counted
from support.loop_runs import run
from support.tables import all_of
from support.tiny_models import tiny_llama

from cactus_decoding import ModelDrafter, Request, load_pair, parse_rule, stream
from cactus_decoding.core.counters import COUNTERS, MAX_RULES, ResponseCounts, RuleCounters, conditional_nats
from cactus_decoding.core.rules.base import row_rule, verdict_on
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import EXAMPLES

QUESTION = EXAMPLES[0].prompt


@pytest.fixture(scope="module")
def steps():
    target, draft = CachedModel(tiny_llama(0)), ModelDrafter(CachedModel(tiny_llama(1)))

    def of(rule, **given):
        return [step for seed in range(4) for step in run(target, draft, rule, 4, seed, length=40, **given)]

    return of


@pytest.fixture(scope="module")
def bundled():
    return load_pair()


@pytest.mark.parametrize("rule", ["cactus:delta=1.0", "clamped:width=1.0", "lenience:lenience=0.5"])
def test_what_is_counted_is_what_the_outcomes_say(steps, rule):
    counters, outcomes = RuleCounters(CollectorRegistry()), steps(rule, budget=math.inf)
    for outcome in outcomes:
        counters.add_step(parse_rule(rule), outcome)
    found, visits = counted(counters.text().decode())[rule], [visit for outcome in outcomes for visit in outcome.visits]
    assert found.keys() == COUNTERS.keys()
    assert found["cactus_verified_positions"] == found["cactus_audited_positions"] == len(visits)
    assert found["cactus_accepted_tokens"] == sum(outcome.num_accepted for outcome in outcomes)
    assert found["cactus_protected_positions"] == found["cactus_fell_back_positions"] == 0
    assert found["cactus_relaxed_tokens"] == sum(outcome.num_relaxed for outcome in outcomes) > 0
    assert found["cactus_audited_nats"] == pytest.approx(sum(sum(outcome.nats) for outcome in outcomes))
    by_definition = 0.0
    for visit in visits:
        target, draft = visit.target_probs.double(), visit.draft_probs
        if (row := row_rule(parse_rule(rule))) is not None:
            h = row.relaxed_target(target, draft)
        else:  # one token is lifted
            lifted = verdict_on(visit).relaxed_prob.item()
            rest = (1 - lifted) / (1 - target[visit.token_id])
            h = target * rest
            h[visit.token_id] = lifted
        by_definition += (h * (h / target).log()).nan_to_num().sum().item()
    assert found["cactus_conditional_nats"] == pytest.approx(by_definition, rel=1e-6)


@all_of("settings", [{"tree": "static=2.2"}, {"tree": "static=2.2", "verification": "joint"}, {}])
def test_sums_of_trees_are_equal_too(bundled, settings):
    """A recovered token that is another child of its position is a proposal that was kept."""
    cut = matched = 0
    for seed, given in enumerate(CUTS):
        told, reported = Told(), ResponseCounts()
        asked = {"max_new_tokens": given["max_tokens"], "stop": given.get("stop", []), "seed": seed} | settings
        request = Request.from_dict({"rule": "clamped:width=2", "temperature": 1.0} | asked)
        for outcome in stream(bundled, QUESTION, request=request):
            told(request, outcome)
            reported.add(outcome)
        told.check(reported.report())
        cut, matched = cut + told.cut, matched + told.matched
    assert cut > 0
    assert (matched > 0) == (settings.get("tree") is not None and "verification" not in settings)


def test_rules_without_a_relaxed_target_have_no_nats(steps):
    for rule in ("typical", "top_k:k=3", "lossless"):
        visits = [visit for outcome in steps(rule) for visit in outcome.visits]
        assert {conditional_nats(visit) for visit in visits} == {0.0}


def test_requests_cannot_make_labels_without_end(steps):
    counters, outcome = RuleCounters(CollectorRegistry()), steps("lossless")[0]
    for number in range(2 * MAX_RULES):
        counters.add_step(parse_rule(f"cactus:delta={number + 1}"), outcome)
    assert len(counted(counters.text().decode())) == MAX_RULES + 1
