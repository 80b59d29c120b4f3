"""Whole engines on the bundled pair: what they emit, in one process and in two that share the model."""

import pytest
from engine_run import run_jobs
from second_tokens import OPENING, follow, prompt_of

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


def sampled(rule: str | None, max_tokens: int) -> dict:
    asked = None if rule is None else {"acceptance_rule": rule}
    return {"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, "extra_args": asked}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [prompt_of(f"Question: {question}\nAnswer:") for question in QUESTIONS]


def greedy_jobs(prompts: list[list[int]]) -> list[dict]:
    greedy = {"temperature": 0.0, "max_tokens": 24}
    relaxed = greedy | {"extra_args": {"acceptance_rule": "cactus:delta=5"}}
    return [{"prompts": prompts, "sampling": greedy}, {"prompts": prompts, "sampling": relaxed}]


def law_job(rule: str | None) -> dict:
    return {"prompts": [prompt_of(OPENING)], "copies": COPIES, "sampling": sampled(rule, 2)}


@pytest.fixture(scope="module")
def one_worker(prompts: list[list[int]]) -> list[dict]:
    laws = [law_job(rule) for rule in RULES]
    refused = {"prompts": prompts, "sampling": sampled("top_k:k=5", 5)}
    seeded = [sampled(SHARED_RULE, 40) | {"seed": seed} for seed in range(len(prompts))]
    reporting = [each | {"extra_args": each["extra_args"] | {"acceptance_report": True}} for each in seeded]
    reports = [{"prompts": prompts, "sampling": sampling} for sampling in (seeded, reporting)]
    return run_jobs([*greedy_jobs(prompts), *laws, *reports, refused])


@pytest.fixture(scope="module")
def two_workers(prompts: list[list[int]]) -> list[dict]:
    return run_jobs([*greedy_jobs(prompts), law_job(SHARED_RULE)], tensor_parallel_size=2)


@smoke
def test_the_engine_emits_the_audited_law_and_no_other(one_worker: list[dict]) -> None:
    for place, rule in enumerate(RULES):
        assert follow(one_worker[2 + place]["token_ids"], rule), rule
    assert not follow(one_worker[2 + RULES.index(SHARED_RULE)]["token_ids"], None)


@smoke
def test_greedy_requests_do_not_notice_a_rule(one_worker: list[dict]) -> None:
    assert one_worker[0]["token_ids"] == one_worker[1]["token_ids"]


@smoke
def test_a_rule_that_vllm_cannot_follow_is_refused_by_name(one_worker: list[dict]) -> None:
    assert "top_k" in one_worker[-1]["error"]


def test_asking_for_a_report_changes_no_token(one_worker: list[dict]) -> None:
    assert one_worker[-3]["token_ids"] == one_worker[-2]["token_ids"]


def test_two_workers_emit_the_same_greedy_tokens_and_the_audited_law(one_worker, two_workers) -> None:
    for one, other in zip(one_worker[:2], two_workers[:2], strict=True):
        assert one["token_ids"] == other["token_ids"]
    assert follow(two_workers[2]["token_ids"], SHARED_RULE)
