"""Answers of our own loop: each as if it were the first, with its costs, and refused where it could not be given."""

from __future__ import annotations

import math
from itertools import islice

import pytest
from support.reads import reads

from cactus_decoding import Budget, Request, SamplingParams, generate, load_pair, stream
from cactus_decoding.core.audit import audit
from cactus_decoding.core.rules import Lossless
from cactus_decoding.lab.evaluation.engines.engine import PASSED_ON, SHARED, AuditedCosts, PairEngine, check_passed_on
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.engines.vllm import VllmEngine
from cactus_decoding.zoo.word_problems import word_problems

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")
PROMPT = next(word_problems("test", seed=0)).prompt


def test_examples_that_prompts_share_are_read_once_and_every_answer_begins_behind_them(pair):
    examples = " ".join(f"{problem.prompt} {problem.solution}" for problem in islice(word_problems("train", seed=1), 2))
    prompts = [f"{examples} {problem.prompt}" for problem in islice(word_problems("test", seed=0), 3)]
    engine, request = PairEngine(pair.twin()), Request("cactus:delta=1.0", max_new_tokens=12, seed=1)
    for prompt in prompts:
        engine.check_prompt(prompt, request)
    order = [engine.answer(prompt, request) for prompt in prompts]
    shared = len(pair.tokenizer(examples).input_ids)
    assert SHARED < shared <= len(engine._held)
    with reads() as found:
        back = [engine.answer(prompt, request) for prompt in reversed(prompts)]
    assert min(start for start, _ in found) >= shared
    assert [answer.audited for answer in order] == [answer.audited for answer in reversed(back)]
    alone = PairEngine(pair.twin()).answer(prompts[0], request)
    assert alone.token_ids == order[0].token_ids


CHAIN = Request(num_speculative_tokens=5, max_new_tokens=40, sampling=SamplingParams(top_p=0.9), seed=7)
TREE = Request("cactus:delta=1.0", tree="static=3.2.1", max_new_tokens=40, seed=7)


def test_the_audit_is_what_an_unlimited_budget_measures(pair):
    asked = [(pair, CHAIN.replace(rule=rule)) for rule in ("clamped:width=2.0", "ensemble:weight=0.5", "typical")]
    lookup = load_pair(draft="ngram")  # whose rows are those of a draft that is sure
    for models, request in (*asked, (pair, TREE), (lookup, CHAIN.replace(rule="cactus:delta=1.0"))):
        answer = PairEngine(models).answer(PROMPT, request)
        response = generate(models, PROMPT, request.replace(budget=Budget(math.inf)))
        assert answer.text == response.text
        assert answer.audited.metered == response.metrics.metered > answer.audited.tv > 0
        assert answer.audited.nats == pytest.approx(response.metrics.nats, rel=1e-6, abs=1e-9)
        assert answer.audited.max_log_ratio > 0


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
    answer = PairEngine(pair.twin()).answer(PROMPT, request)
    assert answer.text == response.text
    assert answer.audited.nats == pytest.approx(response.metrics.nats, rel=1e-6, abs=1e-12)
    assert answer.audited.nats <= budget.limit * (1 + 1e-9)


def test_lossless_costs_nothing_and_no_audit_leaves_the_columns_out(pair):
    request = Request(max_new_tokens=20, seed=1)
    audited = PairEngine(pair).answer(PROMPT, request)
    assert (audited.audited.nats, audited.audited.tv, audited.audited.max_log_ratio) == (0, 0, 0)
    assert audited.audited.metered > 0
    bare = PairEngine(pair, audited=False).answer(PROMPT, request)
    assert (bare.text, bare.audited) == (audited.text, None)


def test_relaxed_greedy_is_metered_in_log_probability(pair):
    request = Request("relaxed_greedy:margin=3.0", sampling=SamplingParams(temperature=0.0), max_new_tokens=40, seed=1)
    answer = PairEngine(pair).answer(PROMPT, request)
    assert answer.audited.tv == answer.metrics.relaxed
    assert answer.audited.max_log_ratio == (math.inf if answer.metrics.relaxed else 0.0)
    assert 0 <= answer.audited.nats <= 3.0 * max(answer.metrics.relaxed, 1)


class Hurried(Request):
    minutes: int = 0


def test_what_engines_are_not_told_of_is_refused_unless_it_asks_for_nothing():
    check_passed_on(Hurried("cactus:delta=1", seed=3, stop=("a",)), "a server")
    with pytest.raises(ValueError, match="a server is not told of minutes, but it is 2: "):
        check_passed_on(Hurried(minutes=2), "a server")
    assert {*PASSED_ON} <= {*Request.model_fields}


def test_what_an_engine_cannot_do_is_refused_before_any_work(pair):
    block = Request("clamped:width=1.0", verification="block")
    PairEngine(pair, audited=False).check(block)
    lookup = PairEngine(load_pair(draft="ngram"), audited=False)
    lookup.check(Request("lossless", verification="block"))
    vllm = VllmEngine("target", "draft", {})
    for refused, said in (
        (lambda: lookup.check(block), "block verification of a relaxed rule needs a draft model"),
        (lambda: vllm.check(Hurried(minutes=2)), "vLLM is not told of minutes, but it is 2: leave it out"),
        (lambda: vllm.check(Request(tree="static=2.2")), "vLLM, which has removed tree attention, reads chains of"),
        (lambda: load_engine("magic", "bundled", "bundled", audited=True), "one of transformers, llama-cpp, vllm"),
    ):
        with pytest.raises(ValueError, match=said):
            refused()
