"""Whole engines on the bundled pair: what they emit, in one process and in two that share the model."""

from __future__ import annotations

import pytest
import torch
from engine_run import run_jobs
from second_tokens import OPENING, follow, prompt_of
from transformers import AutoModelForCausalLM

from cactus_decoding import parse_rule, zoo
from cactus_decoding.engines.openai.relaxed_logits import lift_cost, relaxed_probability

pytestmark = pytest.mark.engine
smoke = pytest.mark.smoke  # one engine for `make test`; two workers are two more

SPECULATION = {"model": str(zoo.path("draft")), "num_speculative_tokens": 4}
QUESTIONS = (
    "Anna has 43 stamps. She gives away 17 stamps. How many stamps are left?",
    "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?",
    "Lily picks 9 pears and eats 2. How many pears are left?",
    "Ben reads 12 pages a day for 5 days. How many pages does he read?",
)
RULES = (None, "cactus:delta=1", "cactus:delta=0.5,solver=exact", "ensemble:weight=0.5", "clamped:width=1")
COPIES = 500
SHARED_RULE = "cactus:delta=1"
TARGET = str(zoo.path("target"))


def sampled(rule: str | None, max_tokens: int, **extra: object) -> dict:
    asked = extra | ({} if rule is None else {"acceptance_rule": rule})
    return {"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, "extra_args": asked or None}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [prompt_of(f"Question: {question}\nAnswer:") for question in QUESTIONS]


def greedy_jobs(prompts: list[list[int]]) -> list[dict]:
    greedy = {"temperature": 0.0, "max_tokens": 24}
    relaxed = greedy | {"extra_args": {"acceptance_rule": "cactus:delta=5"}}
    return [{"prompts": prompts, "sampling": greedy}, {"prompts": prompts, "sampling": relaxed}]


def law_job(rule: str | None) -> dict:
    return {"prompts": [prompt_of(OPENING)], "copies": COPIES, "sampling": sampled(rule, 2)}


BUDGETS, REPORTED = (None, 0.4), 4
"""Of answers that are replayed from their reports, and how many of each prompt."""


def report_job(prompts: list[list[int]], budget: float | None, **extra: object) -> dict:
    """Return a job of seeded answers with greedy drafts."""
    keys = extra | ({} if budget is None else {"budget": budget})
    sampling = [sampled(SHARED_RULE, 40, **keys) | {"seed": seed} for seed in range(len(prompts) * REPORTED)]
    return {"prompts": prompts, "copies": REPORTED, "sampling": sampling}


@pytest.fixture(scope="module")
def one_worker(prompts: list[list[int]]) -> list[dict]:
    laws = [law_job(rule) for rule in RULES]
    refused = {"prompts": prompts, "sampling": sampled("top_k:k=5", 5)}
    reports = [report_job(prompts, budget, **more) for more in ({"acceptance_report": True}, {}) for budget in BUDGETS]
    return run_jobs(
        [*greedy_jobs(prompts), *laws, *reports, refused],
        model=TARGET,
        speculative_config=SPECULATION,
        per_request_spec_decode_metrics="detailed",
    )


@pytest.fixture(scope="module")
def reports(one_worker: list[dict]) -> list[dict]:
    """Return the answers with reports, and the same seeds without."""
    return one_worker[-2 * len(BUDGETS) - 1 : -1]


@pytest.fixture(scope="module")
def two_workers(prompts: list[list[int]]) -> list[dict]:
    jobs = [*greedy_jobs(prompts), law_job(SHARED_RULE)]
    return run_jobs(jobs, model=TARGET, speculative_config=SPECULATION, tensor_parallel_size=2)


@smoke
@pytest.mark.parametrize("rule", RULES)
def test_the_engine_emits_the_audited_law(rule: str | None, one_worker: list[dict]) -> None:
    assert follow(one_worker[2 + RULES.index(rule)]["token_ids"], rule)


@smoke
def test_another_law_is_refuted(one_worker: list[dict]) -> None:
    assert not follow(one_worker[2 + RULES.index(SHARED_RULE)]["token_ids"], None)


@smoke
def test_greedy_requests_do_not_notice_a_rule(one_worker: list[dict]) -> None:
    assert one_worker[0]["token_ids"] == one_worker[1]["token_ids"]


@smoke
def test_a_rule_that_vllm_cannot_follow_is_refused_by_name(one_worker: list[dict]) -> None:
    assert "top_k" in one_worker[-1]["error"]


def test_two_workers_emit_the_same_greedy_tokens(one_worker: list[dict], two_workers: list[dict]) -> None:
    assert two_workers[0]["token_ids"] == one_worker[0]["token_ids"]
    assert two_workers[1]["token_ids"] == one_worker[1]["token_ids"]


def test_two_workers_emit_the_audited_law(two_workers: list[dict]) -> None:
    assert follow(two_workers[2]["token_ids"], SHARED_RULE)


# --- what answers report of themselves ---


def test_asking_for_a_report_changes_no_token(reports: list[dict]) -> None:
    for asked, plain in zip(reports[:2], reports[2:], strict=True):
        assert asked["token_ids"] == plain["token_ids"]
        assert all("acceptance_report" not in metrics for metrics in plain["metrics"])


def replay(prompt: list[int], tokens: list[int], steps: list[tuple[int, int]], budget: float) -> list[float]:
    """Return nats, verified positions, relaxed tokens and fallen-back positions of an answer with greedy drafts."""
    models = [AutoModelForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32) for role in ("target", "draft")]
    rule, text, emitted = parse_rule(SHARED_RULE), [*prompt, tokens[0]], iter(tokens[1:])
    nats, verified, relaxed, fell_back = 0.0, 0, 0.0, 0
    for drafted, accepted in steps:
        for depth in range(min(drafted, accepted + 1)):
            with torch.no_grad():
                target, draft = (model(torch.tensor([text])).logits[0, -1].double() for model in models)
            token = int(draft.argmax())
            q = target.softmax(-1)[token]
            h = relaxed_probability(rule, q)
            cost = lift_cost(q, h).item()
            if nats + cost <= budget and nats < budget:
                nats, verified = nats + cost, verified + 1
                relaxed += (1 - q / h).item() if depth < accepted else 0.0
            else:
                fell_back += 1
            if depth < accepted:
                text.append(token)
                assert next(emitted, token) == token
        if (further := next(emitted, None)) is not None:
            text.append(further)
    return [nats, verified, relaxed, fell_back]


@pytest.mark.parametrize("job", range(len(BUDGETS)))
def test_a_replay_with_the_models_gives_the_report(job: int, reports: list[dict], prompts: list[list[int]]) -> None:
    for place in range(0, len(prompts) * REPORTED, REPORTED):
        metrics, tokens = reports[job]["metrics"][place], reports[job]["token_ids"][place]
        steps = list(zip(metrics["per_step_drafted"], metrics["per_step_accepted"], strict=True))
        report = metrics["acceptance_report"]
        names = ("nats", "verified_positions", "relaxed_tokens", "fell_back_positions")
        prompt = prompts[place // REPORTED]
        expected = replay(prompt, tokens, steps, float("inf") if BUDGETS[job] is None else BUDGETS[job])
        assert [report[name] for name in names] == pytest.approx(expected, abs=2e-3)
        assert report["fell_back_positions"] == expected[3]
    assert sum(metrics["acceptance_report"]["fell_back_positions"] for metrics in reports[1]["metrics"]) > 0


def test_reports_add_up_to_what_the_engine_counted(reports: list[dict]) -> None:
    for job in reports[:2]:
        told = [metrics["acceptance_report"] for metrics in job["metrics"]]
        assert sum(sum(report["drafted_by_position"]) for report in told) == job["counters"]["draft_tokens"]
        assert sum(sum(report["accepted_by_position"]) for report in told) == job["counters"]["accepted_tokens"]
