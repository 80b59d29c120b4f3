"""What the server counts of outcomes, and that it is written as Prometheus reads it."""

import math
from dataclasses import replace

import pytest
from support.gguf_files import completions
from support.loop_runs import run
from support.tables import all_of
from support.tiny_models import tiny_llama

from cactus_decoding import Metrics, ModelDrafter, Request, load_pair, parse_rule, stream
from cactus_decoding.core.rules.base import row_rule, verdict_on
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.openai.counters import COUNTERS, MAX_RULES, ResponseCounts, RuleCounters, conditional_nats
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import EXAMPLES

QUESTION = EXAMPLES[0].prompt


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
        if (row := row_rule(parse_rule(rule))) is not None:
            h = row.relaxed_target(target, draft)
        else:  # one token is lifted
            lifted = verdict_on(visit).relaxed_prob.item()
            rest = (1 - lifted) / (1 - target[visit.token_id])
            h = target * rest
            h[visit.token_id] = lifted
        by_definition += (h * (h / target).log()).nan_to_num().sum().item()
    assert found["cactus_conditional_nats"] == pytest.approx(by_definition, rel=1e-6)


CUTS = [{"max_tokens": 12}, {"max_tokens": 27}, {"max_tokens": 50, "stop": [" stam", "equ"]}]
"""Limits and stop strings of which some fall within a step."""
CHAINS = [{}, {"verification": "coupled"}, {"verification": "block"}]


class Told:
    """What the outcomes of responses say, what is counted of them for Prometheus, and how often one was cut."""

    def __init__(self) -> None:
        self.metrics, self.counters, self.cut, self.matched = Metrics(), RuleCounters(), 0, 0

    def __call__(self, request: Request, outcome: Outcome) -> None:
        self.metrics += Metrics.of(outcome)
        self.counters.add(request, outcome)
        self.cut += outcome.num_emitted < len(outcome.all_token_ids)
        self.matched += sum(visit.matched is not None for visit in outcome.visits)

    def check(self, *reports: dict) -> None:
        """Compare the sums; all positions were judged by the rule."""
        (found,), metrics = counted(self.counters).values(), self.metrics
        positions = metrics.accepted + metrics.recovered
        assert found["cactus_verified_positions"] == positions
        assert found["cactus_accepted_tokens"] == metrics.accepted
        assert found["cactus_relaxed_tokens"] == metrics.relaxed
        for name, expected in {
            "steps": metrics.steps,
            "drafted_by_position": metrics.drafted,
            "accepted_by_position": metrics.accepted,
            "verified_positions": positions,
            "accepted_tokens": metrics.accepted,
            "relaxed_tokens": metrics.relaxed,
        }.items():
            given = [report[name] for report in reports]
            assert not reports or expected == sum(sum(each) if isinstance(each, list) else each for each in given), name


@pytest.fixture(scope="module")
def served(gguf):
    file = parse_gguf(f"{gguf('target')}:cache=float32,context_size=512")
    return load_gguf_pair(file, f"{gguf('worded')}:cache=float32", kept_prompts=1)


@pytest.fixture(scope="module")
def bundled():
    return load_pair()


@all_of("chain", CHAINS)
def test_sums_of_the_server_are_equal_wherever_a_stop_or_a_limit_falls(served, chain):
    ask, cut = completions(served, **{"rule": "clamped:width=2", "num_speculative_tokens": 5} | chain), 0
    for seed, given in enumerate(CUTS):
        told, same = Told(), {"prompt": QUESTION, "seed": seed, "n": 2, "acceptance_report": True} | given
        answered = ask(told, **same).whole()
        told.check(*answered["metrics"]["speculative_decoding"]["acceptance_report"])
        assert told.metrics.generated >= answered["usage"]["completion_tokens"]
        cut += told.cut
    assert cut > 0


def test_tokens_that_a_form_forces_are_accepted_by_position_and_not_by_the_rule(served):
    told, form = Told(), {"guided_regex": "Each of [0-9] friends gets [0-9] (stamps|pens)", "max_tokens": 60}
    same = {"prompt": QUESTION, "seed": 1, "acceptance_report": True} | form
    answered = completions(served, rule="clamped:width=2", num_speculative_tokens=5)(told, **same).whole()
    report = answered["metrics"]["speculative_decoding"]["acceptance_report"]
    assert sum(report["accepted_by_position"]) == report["accepted_tokens"] + told.metrics.forced
    assert sum(report["drafted_by_position"]) == told.metrics.drafted
    assert told.metrics.forced > 5


def test_sums_of_a_llama_are_those_of_its_steps_wherever_a_stop_or_a_limit_falls(made):
    told, cut = Told(), 0
    llama = made("worded", rule="clamped:width=2", num_speculative_tokens=5, on_step=lambda *step: told(*step))
    for seed, given in enumerate([*CUTS, *({"max_tokens": 50, "stop": each} for each in (" each", "get"))]):
        told = Told()
        llama.create_completion(QUESTION, seed=seed, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, **given)
        told.check()
        assert replace(llama.metrics, seconds=0.0) == told.metrics
        cut += llama.usage["completion_tokens"] + 1 < told.metrics.generated  # which an end token alone cannot do
    assert cut > 0


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
    counters, outcome = RuleCounters(), steps("lossless")[0]
    for number in range(2 * MAX_RULES):
        counters.add(Request(f"cactus:delta={number + 1}"), outcome)
    assert len(counted(counters)) == MAX_RULES + 1
