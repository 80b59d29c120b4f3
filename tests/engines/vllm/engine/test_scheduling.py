"""Requests that let the target verify fewer proposals, one beside the other in a real engine, drawn and likeliest."""

import pytest
from engine_run import run_jobs
from mixed_load import QUESTIONS
from transformers import AutoTokenizer

from cactus_decoding import zoo

pytestmark = pytest.mark.engine

MOST, TOKENS = 3, 24
LIMITS = (None, 0, 1, 2, MOST)
REPORT = {"acceptance_report": True}


def prompts(count: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    return [tokenizer(f"Question: {QUESTIONS[place % len(QUESTIONS)]}\nAnswer:").input_ids for place in range(count)]


def asking(limit: int | None, **further: object) -> dict:
    return REPORT | ({} if limit is None else {"num_speculative_tokens": limit}) | further


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_each_request_has_as_many_proposals_verified_as_it_asks_for(method: str) -> None:
    greedy = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}
    drawn = greedy | {"temperature": 1.0}
    questions, rule = prompts(6), {"acceptance_rule": "clamped:width=1.7"}
    mixed = [{"prompts": [each for each in questions for _ in LIMITS], "sampling": [
        settings | {"extra_args": asking(limit, **asked)} for _ in questions for limit in LIMITS
    ]} for settings, asked in ((greedy, {}), (drawn, {}), (drawn, rule))]  # fmt: skip
    alone = [{"prompts": questions, "sampling": greedy | {"extra_args": asking(limit)}} for limit in (0, 1)]
    wrong = [{"prompts": questions[:1], "sampling": greedy | {"extra_args": asking(value)}} for value in (MOST + 1, -1)]
    draft = {"model": str(zoo.path("draft")), "num_speculative_tokens": MOST, "draft_sample_method": method}
    results = run_jobs(
        [*mixed, *alone, *wrong],
        speculative_config=draft,
        per_request_spec_decode_metrics="detailed",
        enable_prefix_caching=True,  # with which vLLM would fill some requests' first steps to the server's number
    )
    for refusal, value in zip(results[-2:], (MOST + 1, -1), strict=True):
        said = f"num_speculative_tokens must be between 0 and {MOST}, but is {value}"
        assert refusal["error"] == f"{said} (parameter=num_speculative_tokens)"
    for result in results[:3]:
        for place, metrics in enumerate(result["metrics"]):
            limit = LIMITS[place % len(LIMITS)]
            _check_counts(metrics, MOST if limit is None else limit)
        assert result["counters"]["draft_tokens"] == sum(each["num_draft_tokens"] for each in result["metrics"])
        assert result["counters"]["accepted_tokens"] > 0
    texts = results[0]["token_ids"]
    for place in range(len(questions)):
        same = texts[place * len(LIMITS) : (place + 1) * len(LIMITS)]
        assert all(text == same[0] for text in same)
        assert [results[3]["token_ids"][place], results[4]["token_ids"][place]] == same[:2]
    ruled = [each["acceptance_report"] for each in results[2]["metrics"]]
    for place, report in enumerate(ruled):
        assert (report["verified_positions"] > 0) == (LIMITS[place % len(LIMITS)] != 0)
    assert sum(report["nats"] for report in ruled) > 0
    assert results[3]["counters"]["draft_tokens"] == 0, "nobody wanted any"
    for metrics in results[4]["metrics"]:
        _check_counts(metrics, 1)


def _check_counts(metrics: dict, limit: int) -> None:
    report, drafted = metrics["acceptance_report"], metrics.get("per_step_drafted", [])
    assert max(drafted, default=0) == limit
    assert sum(drafted) == metrics["num_draft_tokens"]
    assert report["drafted_by_position"] == [sum(count > place for count in drafted) for place in range(MOST)]
    kept = sum(report["accepted_by_position"])
    assert kept == metrics["num_accepted_draft_tokens"]
    assert kept <= TOKENS


def test_no_rule_judges_what_vllm_proposes_to_all_near_a_request_s_end() -> None:
    """vLLM proposes token 0 there, which a rule that mixes p into q would keep three times in four."""
    questions, limit = prompts(6), 96
    ends = {"temperature": 0.0, "max_tokens": limit, "ignore_eos": True}
    mixed = {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True}
    asked = mixed | {"extra_args": {"acceptance_rule": "ensemble:weight=0.75", "acceptance_report": True}}
    long = [(questions[place % 6] * 4)[: limit - 4 * place - 5] for place in range(8)]  # they end one after the other
    job = {"prompts": [*questions, *long], "sampling": [*[asked] * 6, *[ends] * 8]}
    draft = {"model": str(zoo.path("draft")), "num_speculative_tokens": MOST, "draft_sample_method": "greedy"}
    engine = {"max_model_len": limit, "per_request_spec_decode_metrics": "summary"}
    (result,) = run_jobs([job], speculative_config=draft, **engine)
    assert all(0 not in tokens for tokens in result["token_ids"][:6])
    assert all(metrics["acceptance_report"]["accepted_tokens"] > 0 for metrics in result["metrics"][:6])
