"""Whole engines on the bundled pair: what they emit, in one process and in two that share the model."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from engine_run import run_jobs
from scipy.stats import chi2
from support.chi_square import rejects
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import audit, zoo

pytestmark = pytest.mark.engine
smoke = pytest.mark.smoke  # one engine for `make test`; two workers are two more

SPECULATION = {"model": str(zoo.path("draft")), "num_speculative_tokens": 3}
QUESTIONS = (
    "Anna has 43 stamps. She gives away 17 stamps. How many stamps are left?",
    "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?",
    "Lily picks 9 pears and eats 2. How many pears are left?",
    "Ben reads 12 pages a day for 5 days. How many pages does he read?",
)
OPENING = f"Question: {QUESTIONS[3]}\nAnswer: To begin"
"""A comma follows for certain, and then many tokens are possible, of which the draft's choice is no sure one."""
RULES = (None, "cactus:delta=1", "cactus:delta=0.5,solver=exact", "ensemble:weight=0.5", "clamped:width=1")
COPIES = 500
SHARED_RULE = "cactus:delta=1"
TARGET = str(zoo.path("target"))
FALSE_ALARM = 1e-6


def sampled(rule: str | None, max_tokens: int, **extra: object) -> dict:
    asked = extra | ({} if rule is None else {"acceptance_rule": rule})
    return {"temperature": 1.0, "max_tokens": max_tokens, "ignore_eos": True, "extra_args": asked or None}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    return [tokenizer(f"Question: {question}\nAnswer:").input_ids for question in QUESTIONS]


def greedy_jobs(prompts: list[list[int]]) -> list[dict]:
    greedy = {"temperature": 0.0, "max_tokens": 24}
    relaxed = greedy | {"extra_args": {"acceptance_rule": "cactus:delta=5"}}
    return [{"prompts": prompts, "sampling": greedy}, {"prompts": prompts, "sampling": relaxed}]


@pytest.fixture(scope="module")
def opening() -> list[int]:
    return AutoTokenizer.from_pretrained(zoo.path("target"))(OPENING).input_ids


def law_job(opening: list[int], rule: str | None, copies: int) -> dict:
    return {"prompts": [opening], "copies": copies, "sampling": sampled(rule, 2)}


@pytest.fixture(scope="module")
def one_worker(prompts: list[list[int]], opening: list[int]) -> list[dict]:
    laws = [law_job(opening, rule, COPIES) for rule in RULES]
    refused = {"prompts": prompts, "sampling": sampled("top_k:k=5", 5)}
    return run_jobs([*greedy_jobs(prompts), *laws, refused], model=TARGET, speculative_config=SPECULATION)


@pytest.fixture(scope="module")
def two_workers(prompts: list[list[int]], opening: list[int]) -> list[dict]:
    jobs = [*greedy_jobs(prompts), law_job(opening, SHARED_RULE, COPIES)]
    return run_jobs(jobs, model=TARGET, speculative_config=SPECULATION, tensor_parallel_size=2)


def second_token_law(prompt: list[int], first: int, rule: str | None) -> torch.Tensor:
    """Return the exact law of the second token given the first: the target's, relaxed towards the draft's choice."""
    rows = []
    for role in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32)
        with torch.no_grad():
            rows.append(model(torch.tensor([[*prompt, first]])).logits[0, -1])
    target, drafted = rows[0].double().softmax(-1), rows[1].argmax()
    probs = audit(rule or "lossless", target.unsqueeze(0), draft_token_ids=drafted.unsqueeze(0)).output_probs[0]
    return probs / probs.sum()


def check_second_tokens(sequences: list[list[int]], prompt: list[int], rule: str | None) -> None:
    first = Counter(sequence[0] for sequence in sequences).most_common(1)[0][0]
    seconds = torch.tensor([sequence[1] for sequence in sequences if sequence[0] == first])
    assert len(seconds) > COPIES // 2
    assert not rejects(seconds, second_token_law(prompt, first, rule))


@smoke
@pytest.mark.parametrize("rule", RULES)
def test_the_engine_emits_the_audited_law(rule: str | None, one_worker: list[dict], opening: list[int]) -> None:
    check_second_tokens(one_worker[2 + RULES.index(rule)]["token_ids"], opening, rule)


@smoke
def test_another_law_is_refuted(one_worker: list[dict], opening: list[int]) -> None:
    with pytest.raises(AssertionError):
        check_second_tokens(one_worker[2 + RULES.index(SHARED_RULE)]["token_ids"], opening, None)


@smoke
def test_greedy_requests_do_not_notice_a_rule(one_worker: list[dict]) -> None:
    assert one_worker[0]["token_ids"] == one_worker[1]["token_ids"]


@smoke
def test_a_rule_that_vllm_cannot_follow_is_refused_by_name(one_worker: list[dict]) -> None:
    assert "top_k" in one_worker[-1]["error"]


def test_two_workers_emit_the_same_greedy_tokens(one_worker: list[dict], two_workers: list[dict]) -> None:
    assert two_workers[0]["token_ids"] == one_worker[0]["token_ids"]
    assert two_workers[1]["token_ids"] == one_worker[1]["token_ids"]


def test_two_workers_emit_the_same_law(one_worker: list[dict], two_workers: list[dict], opening: list[int]) -> None:
    one, two = one_worker[2 + RULES.index(SHARED_RULE)]["token_ids"], two_workers[2]["token_ids"]
    check_second_tokens(two, opening, SHARED_RULE)
    assert not differ(Counter(map(tuple, one)), Counter(map(tuple, two)))


def differ(one: Counter, other: Counter) -> bool:
    """Say whether two samples of equal size refute a common law, by the chi-square test with rare values pooled."""
    common = [value for value in one | other if one[value] + other[value] >= 20]
    cells = [(one[value], other[value]) for value in common]
    cells.append((one.total() - sum(a for a, _ in cells), other.total() - sum(b for _, b in cells)))
    cells = [cell for cell in cells if sum(cell) > 0]
    statistic = sum((a - b) ** 2 / (a + b) for a, b in cells)
    return bool(statistic > chi2.isf(FALSE_ALARM, len(cells) - 1))
