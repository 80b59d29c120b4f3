"""Whole engines on the bundled pair: what they emit, in one process and in two that share the model."""

import math
from collections import Counter
from itertools import islice

import pytest
import torch
from engine_run import run_jobs
from greedy_answers import KINDS, sampling
from scipy.special import rel_entr
from second_tokens import OPENING, follow, prompt_of
from transformers import AutoModelForCausalLM

from cactus_decoding import zoo
from cactus_decoding.core.counters import REPORTED as REPORTED_COUNTS

pytestmark = pytest.mark.engine
smoke = pytest.mark.smoke  # one engine for `make test`; two workers are two more

QUESTIONS = (
    "Anna has 43 stamps. She gives away 17 stamps. How many stamps are left?",
    "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?",
    "Lily picks 9 pears and eats 2. How many pears are left?",
    "Ben reads 12 pages a day for 5 days. How many pages does he read?",
)
RULES = (None, "cactus:delta=1", "cactus:delta=0.5,solver=exact", "ensemble:weight=0.5", "clamped:width=1")
COPIES = 500
SHARED_RULE = "cactus:delta=1"
REPORTED, LIMIT = {"acceptance_report": True}, 0.4  # in nats


def sampled(rule: str | None, max_tokens: int, **further: object) -> dict:
    asked = further | ({} if rule is None else {"acceptance_rule": rule})
    return {"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, "extra_args": asked or None}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [prompt_of(f"Question: {question}\nAnswer:") for question in QUESTIONS]


def greedy_jobs(prompts: list[list[int]]) -> list[dict]:
    greedy = {"temperature": 0.0, "max_tokens": 24}
    relaxed = greedy | {"extra_args": {"acceptance_rule": "cactus:delta=5"}}
    return [{"prompts": prompts, "sampling": greedy}, {"prompts": prompts, "sampling": relaxed}]


def shared_jobs(prompts: list[list[int]]) -> list[dict]:
    """Return what two workers must answer as one does: rules for temperature 0 and seeded draws, with all limits."""
    relaxed = [sampling(asked) for _ in prompts for asked in KINDS]
    drawn = [sampled(SHARED_RULE, 40, **REPORTED, budget=LIMIT, protect="digits") | {"seed": seed} for seed in range(8)]
    return [
        {"prompts": prompts, "copies": len(KINDS), "sampling": relaxed},
        {"prompts": prompts, "copies": 2, "sampling": drawn},
    ]


def law_job(rule: str | None) -> dict:
    return {"prompts": [prompt_of(OPENING)], "copies": COPIES, "sampling": sampled(rule, 2)}


@pytest.fixture(scope="module")
def one_worker(prompts: list[list[int]]) -> list[dict]:
    laws = [law_job(rule) for rule in RULES]
    refused = {"prompts": prompts, "sampling": sampled("top_k:k=5", 5)}
    reports = [
        {
            "prompts": prompts,
            "sampling": [sampled(SHARED_RULE, 40, **keys) | {"seed": seed} for seed in range(len(prompts))],
        }
        for keys in ({}, REPORTED, REPORTED | {"budget": LIMIT})
    ]
    jobs = [*greedy_jobs(prompts), *laws, *shared_jobs(prompts), *reports, refused]
    return run_jobs(jobs, per_request_spec_decode_metrics="detailed")


@pytest.fixture(scope="module")
def two_workers(prompts: list[list[int]]) -> list[dict]:
    return run_jobs([*greedy_jobs(prompts), law_job(SHARED_RULE), *shared_jobs(prompts)], tensor_parallel_size=2)


@smoke
def test_the_engine_emits_the_audited_law_and_no_other(one_worker: list[dict]) -> None:
    for place, rule in enumerate(RULES):
        assert follow(one_worker[2 + place]["token_ids"], rule), rule
    assert not follow(one_worker[2 + RULES.index(SHARED_RULE)]["token_ids"], None)


@smoke
def test_greedy_requests_do_not_notice_a_rule_for_other_temperatures(one_worker: list[dict]) -> None:
    assert one_worker[0]["token_ids"] == one_worker[1]["token_ids"]


@smoke
def test_a_rule_that_vllm_cannot_follow_is_refused_by_name(one_worker: list[dict]) -> None:
    assert "top_k" in one_worker[-1]["error"]


def test_asking_for_a_report_changes_no_token(one_worker: list[dict]) -> None:
    assert one_worker[-4]["token_ids"] == one_worker[-3]["token_ids"]


def replay(prompt: list[int], tokens: list[int], steps: list[tuple[int, int]], budget: float) -> list[float]:
    """Return what an answer's report should say, by transformers' rows, the paper's formula and greedy drafts."""
    models = [AutoModelForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32) for role in ("target", "draft")]
    text, emitted = [*prompt, tokens[0]], iter(tokens[1:])
    nats, verified, relaxed, fell_back = 0.0, 0, 0.0, 0
    for drafted, accepted in steps:
        for depth in range(min(drafted, accepted + 1)):
            with torch.no_grad():
                target, draft = (model(torch.tensor([text])).logits[0, -1].double() for model in models)
            token = int(draft.argmax())
            q = target.softmax(-1)[token].item()
            h = min(q + math.sqrt(2 * q * (1 - q)), 1.0)
            cost = rel_entr(h, q) + rel_entr(1 - h, 1 - q)
            if nats + cost <= budget and nats < budget:
                nats, verified = nats + cost, verified + 1
                relaxed += 1 - q / h if depth < accepted else 0.0
            else:
                fell_back += 1
            if depth < accepted:
                text.append(token)
                assert next(emitted, token) == token
        text += islice(emitted, 1)  # the recovered or bonus token, unless the answer has ended
    return [nats, verified, relaxed, fell_back]


def test_a_replay_with_the_models_gives_the_report(one_worker: list[dict], prompts: list[list[int]]) -> None:
    names = ("nats", "verified_positions", "relaxed_tokens", "fell_back_positions")
    for budget, answers in ((math.inf, one_worker[-3]), (LIMIT, one_worker[-2])):
        for prompt, tokens, metrics in zip(prompts, answers["token_ids"], answers["metrics"], strict=True):
            steps = list(zip(metrics["per_step_drafted"], metrics["per_step_accepted"], strict=True))
            expected, report = replay(prompt, tokens, steps, budget), metrics["acceptance_report"]
            assert [report[name] for name in names] == pytest.approx(expected, abs=2e-3)
            assert (report["relaxed_tokens"] > 0, report["fell_back_positions"] > 0) == (True, budget == LIMIT)


def test_two_workers_emit_the_same_greedy_tokens_and_the_audited_law(one_worker, two_workers) -> None:
    for one, other in zip(one_worker[:2], two_workers[:2], strict=True):
        assert one["token_ids"] == other["token_ids"]
    assert follow(two_workers[2]["token_ids"], SHARED_RULE)


def test_two_workers_keep_budgets_and_protection_and_report_as_one_does(one_worker, two_workers) -> None:
    begin, totals = 2 + len(RULES), Counter()
    for one, other in zip(one_worker[begin : begin + 2], two_workers[3:], strict=True):
        assert one["token_ids"] == other["token_ids"]
        for metrics, others in zip(one["metrics"], other["metrics"], strict=True):
            report, expected = (each["acceptance_report"] for each in (others, metrics))
            assert {name: pytest.approx(value, abs=1e-3) for name, value in expected.items()} == report
            totals.update({name: report[name] for name in REPORTED_COUNTS})
    assert all(totals.values())
