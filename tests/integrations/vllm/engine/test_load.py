"""A real engine whose rules depend on the number of requests in a step, against the audit's exact law for each.

Each chi-square test rejects a right engine with probability 1e-6, and there is one a kind of request and a batch size.
vLLM's seed is fixed, and it runs in one process, so that a batch is all there before its first step.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from engine_run import run_jobs
from support.chi_square import rejects
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import audit, zoo

pytestmark = pytest.mark.engine

OPENING = "Question: Ben reads 12 pages a day for 5 days. How many pages does he read?\nAnswer: To begin"
"""A comma follows for certain, and then many tokens are possible, of which the draft's choice is no sure one."""
TABLE = [[1, 1, 0.02], [2, 15, 0.0], [16, 64, 1.0]]
LOSSLESS = {1: "lossless", 16: "lossless"}
KINDS: tuple[tuple[dict, dict[int, str]], ...] = (
    ({"acceptance_rule": "cactus:delta=2"}, {1: "cactus:delta=0.04", 16: "cactus:delta=2"}),
    ({"acceptance_rule": "cactus:delta=0.2"}, {1: "cactus:delta=0.004", 16: "cactus:delta=0.2"}),
    ({"acceptance_rule": "clamped:width=2"}, {1: "clamped:width=0.04", 16: "clamped:width=2"}),
    ({"acceptance_rule": "cactus:delta=2", "budget": 0.001}, LOSSLESS),
    ({}, LOSSLESS),
    ({"acceptance_rule": "cactus:delta=2", "protect": "negation"}, {1: "cactus:delta=0.04", 16: "cactus:delta=2"}),
    ({"acceptance_rule": "cactus:delta=2", "protect": "digits", "protect_threshold": 1e-4}, LOSSLESS),
    ({"acceptance_rule": "cactus:delta=2", "lossless_tokens": 2}, LOSSLESS),
    ({"acceptance_rule": "cactus:delta=2", "relax_within": [14, 322]}, {1: "cactus:delta=0.04", 16: "cactus:delta=2"}),
)
"""What requests ask for, and which rule judges their second token in a batch of one and of sixteen."""
COPIES, WHOLE = 400, 40


def sampled(asked: dict, max_tokens: int) -> dict:
    return {"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, "extra_args": asked or None}


@pytest.fixture(scope="module")
def results() -> list[dict]:
    prompts = [AutoTokenizer.from_pretrained(zoo.path("target"))(OPENING).input_ids]
    jobs = [
        {"prompts": prompts, "copies": COPIES, "sampling": sampled(asked, 2), "at_once": size}
        for asked, laws in KINDS
        for size in laws
    ]
    budgeted = {"acceptance_rule": "cactus:delta=2", "budget": 0.3, "acceptance_report": True}
    jobs += [
        {"prompts": prompts, "copies": copies, "sampling": sampled(budgeted, WHOLE), "at_once": copies}
        for copies in (1, 8, 32)
    ]
    return run_jobs(
        jobs,
        environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        model=str(zoo.path("target")),
        speculative_config={"model": str(zoo.path("draft")), "num_speculative_tokens": 3},
        additional_config={"load_rule": TABLE},
    )


@pytest.fixture(scope="module")
def rows() -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the likeliest first token, the target's row behind it, and the draft's choice."""
    prompt = AutoTokenizer.from_pretrained(zoo.path("target"))(OPENING).input_ids
    target, draft = (AutoModelForCausalLM.from_pretrained(zoo.path(role)).float() for role in ("target", "draft"))
    with torch.no_grad():
        first = int(target(torch.tensor([prompt])).logits[0, -1].argmax())
        logits = [model(torch.tensor([[*prompt, first]])).logits[0, -1] for model in (target, draft)]
    return first, logits[0].double().softmax(-1), logits[1].argmax()


def follows(rule: str, job: dict, rows: tuple[int, torch.Tensor, torch.Tensor]) -> bool:
    """Say whether the second tokens of a job have the law of a rule."""
    first, target, drafted = rows
    assert Counter(tokens[0] for tokens in job["token_ids"]).most_common(1)[0][0] == first
    seconds = [tokens[1] for tokens in job["token_ids"] if tokens[0] == first]
    assert len(seconds) > 0.9 * COPIES
    law = audit(rule, target.unsqueeze(0), draft_token_ids=drafted.unsqueeze(0)).output_probs[0]
    return not rejects(torch.tensor(seconds), law / law.sum())


CASES = [(kind, size) for kind, (_, laws) in enumerate(KINDS) for size in laws]


@pytest.mark.parametrize(("kind", "size"), CASES, ids=[f"{KINDS[kind][0]}-{size}" for kind, size in CASES])
def test_each_batch_size_has_its_own_law(kind: int, size: int, results: list[dict], rows) -> None:
    assert follows(KINDS[kind][1][size], results[CASES.index((kind, size))], rows)


@pytest.mark.parametrize("kind", [3, 4, 6, 7])
def test_the_law_without_a_budget_a_protection_or_a_phase_is_refuted(kind: int, results: list[dict], rows) -> None:
    assert not follows("cactus:delta=2", results[CASES.index((kind, 16))], rows)


@pytest.mark.parametrize("kind", [0, 2, 5, 8])
def test_the_law_of_the_other_batch_size_is_refuted(kind: int, results: list[dict], rows) -> None:
    laws = KINDS[kind][1]
    assert not follows(laws[16], results[CASES.index((kind, 1))], rows)
    assert not follows(laws[1], results[CASES.index((kind, 16))], rows)


def test_what_is_spent_follows_the_table_and_no_budget_is_overspent(results: list[dict]) -> None:
    *_, one, eight, many = results
    reports = {
        size: [metrics["acceptance_report"] for metrics in job["metrics"]] for size, job in ((8, eight), (32, many))
    }
    assert all(0 <= report["nats"] <= 0.3 for job in reports.values() for report in job)
    assert sum(report["fell_back_positions"] for report in reports[32]) > 0
    spent = {size: sum(report["nats"] for report in job) / size for size, job in reports.items()}
    assert spent[32] > 0.1
    assert spent[8] < 0.05  # its share is 0 until a single answer is left
    assert one["metrics"][0]["acceptance_report"]["nats"] < spent[32]
