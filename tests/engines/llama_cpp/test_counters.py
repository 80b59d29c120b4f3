"""What the server counts of outcomes, and that it is written as Prometheus reads it."""

import math

import pytest
from support.loop_runs import run
from support.tiny_models import tiny_llama

from cactus_decoding import ModelDrafter, Request, parse_rule
from cactus_decoding.engines.openai.counters import COUNTERS, MAX_RULES, RuleCounters, conditional_nats
from cactus_decoding.engines.transformers.cached_model import CachedModel


@pytest.fixture(scope="module")
def steps():
    target, draft = CachedModel(tiny_llama(0)), ModelDrafter(CachedModel(tiny_llama(1)))

    def of(rule, **given):
        return [step for seed in range(4) for step in run(target, draft, rule, 4, seed, length=40, **given)]

    return of


def counted(counters: RuleCounters) -> dict[str, dict[str, float]]:
    lines = [line for line in counters.text().splitlines() if not line.startswith("#")]
    values: dict[str, dict[str, float]] = {}
    for line in lines:
        name, rule, value = line.replace("_total{rule=", "\n").replace("} ", "\n").split("\n")
        values.setdefault(rule.strip('"'), {})[name] = float(value)
    return values


@pytest.mark.parametrize("rule", ["cactus:delta=1.0", "clamped:width=1.0", "lenience:lenience=0.5"])
def test_what_is_counted_is_what_the_outcomes_say(steps, rule):
    counters, outcomes = RuleCounters(), steps(rule, budget=math.inf)
    for outcome in outcomes:
        counters.add(Request(rule), outcome)
    found, visits = counted(counters)[rule], [visit for outcome in outcomes for visit in outcome.visits]
    assert found.keys() == COUNTERS.keys()
    assert found["cactus_verified_positions"] == found["cactus_audited_positions"] == len(visits)
    assert found["cactus_accepted_tokens"] == sum(outcome.num_accepted for outcome in outcomes)
    assert found["cactus_protected_positions"] == found["cactus_fell_back_positions"] == 0
    assert found["cactus_relaxed_tokens"] == sum(outcome.num_relaxed for outcome in outcomes) > 0
    assert found["cactus_audited_nats"] == pytest.approx(sum(sum(outcome.nats) for outcome in outcomes))
    by_definition = 0.0
    for visit in visits:
        target, draft = visit.target_probs.double(), visit.draft_probs
        h = parse_rule(rule).relaxed_target(target, draft)
        if h is None:  # one token is lifted
            lifted = visit.verdict.relaxed_prob.item()
            rest = (1 - lifted) / (1 - target[visit.token_id])
            h = target * rest
            h[visit.token_id] = lifted
        by_definition += (h * (h / target).log()).nan_to_num().sum().item()
    assert found["cactus_conditional_nats"] == pytest.approx(by_definition, rel=1e-6)


def test_rules_without_a_relaxed_target_have_no_nats(steps):
    for rule in ("typical", "top_k:k=3", "lossless"):
        visits = [visit for outcome in steps(rule) for visit in outcome.visits]
        assert {conditional_nats(visit) for visit in visits} == {0.0}


def test_requests_cannot_make_labels_without_end(steps):
    counters, outcome = RuleCounters(), steps("lossless")[0]
    for number in range(2 * MAX_RULES):
        counters.add(Request(f"cactus:delta={number + 1}"), outcome)
    assert len(counted(counters)) == MAX_RULES + 1
