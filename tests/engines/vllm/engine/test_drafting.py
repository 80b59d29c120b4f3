"""Numbers of proposals by batch size in a real engine: what the draft missed while it rested, it reads later."""

import pytest
import torch
from engine_run import run_jobs
from mixed_load import QUESTIONS
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo

pytestmark = pytest.mark.engine

MOST, SHORT, LONG = 3, 8, 60
BLOCK = 128  # tokens of a block of vLLM's CPU cache
DRAFT = {
    "model": str(zoo.path("draft")), "num_speculative_tokens": MOST,
    "num_speculative_tokens_per_batch_size": [[1, 2, MOST], [3, 64, 0]],
}  # fmt: skip
REPORT = {"acceptance_report": True}
RULES = ({"acceptance_rule": "clamped:width=1.7"}, {"acceptance_rule": "cactus:delta=1", "budget": 0.5}, {})


def asking(max_tokens: int, **further: object) -> dict:
    return {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, "extra_args": REPORT} | further


def steps(result: dict, place: int) -> list[list[int]]:
    metrics = result["metrics"][place]
    return [metrics.get(name, []) for name in ("per_step_drafted", "per_step_accepted")]


def greedy(model: AutoModelForCausalLM, prompt: list[int], count: int) -> list[int]:
    """Return the likeliest tokens after a prompt, by transformers."""
    text = [*prompt]
    with torch.no_grad():
        for _ in range(count):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


def test_a_draft_that_rested_proposes_what_it_would_have_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # else the first request begins before the others come
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    target = AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32)
    texts = ["\n".join([*QUESTIONS[place:], *QUESTIONS[:place]]) for place in range(4)]
    prompts = [tokenizer(f"Question: {text}\nAnswer:").input_ids for text in texts]
    assert all(BLOCK - LONG + 1 < len(prompt) < BLOCK for prompt in prompts), "a block is full when an answer ends"
    answers = [greedy(target, prompt, LONG) for prompt in prompts[2:]]
    begun = [prompt + answer[:SHORT] for prompt, answer in zip(prompts[2:], answers, strict=True)]
    later = [prompt + answer for prompt, answer in zip(prompts[2:], answers, strict=True)]

    crowd = {"prompts": prompts, "sampling": [asking(count) for count in (SHORT, SHORT, LONG, LONG)]}
    fresh = {"prompts": begun, "sampling": asking(LONG - SHORT)}
    after = {"prompts": later, "sampling": asking(LONG // 2)}
    ruled = {"prompts": prompts, "copies": 2, "sampling": [
        asking(LONG if place > 5 else SHORT + place, temperature=1.0, extra_args=REPORT | RULES[place % len(RULES)])
        for place in range(8)
    ]}  # fmt: skip
    everybody = {"prompts": prompts, "sampling": asking(LONG)}
    plain = {"speculative_config": DRAFT, "per_request_spec_decode_metrics": "detailed"}
    whole, afresh, uncached, mixed = run_jobs([crowd, fresh, after, ruled], enable_prefix_caching=False, **plain)
    full, cached = run_jobs([everybody, after], enable_prefix_caching=True, **plain)

    assert [steps(whole, place) for place in (0, 1)] == [[[], []]] * 2, "nothing is proposed to four"
    assert whole["token_ids"][2:] == answers
    assert afresh["token_ids"] == [answer[SHORT:] for answer in answers]
    for place in range(2):
        assert steps(whole, 2 + place) == steps(afresh, place), "as by a draft that has read everything"
        assert sum(steps(afresh, place)[1]) > LONG // 3

    assert [steps(full, place) for place in range(4)] == [[[], []]] * 4
    assert cached["token_ids"] == uncached["token_ids"]
    for place in range(2):
        assert steps(cached, place) == steps(uncached, place), "blocks of the cache that it had not read"

    for place, metrics in enumerate(mixed["metrics"]):
        report, rule = metrics["acceptance_report"], RULES[place % len(RULES)]
        assert sum(report["drafted_by_position"]) == metrics["num_draft_tokens"]
        assert (metrics["num_draft_tokens"] > 0) == (place > 5), "the last two are alone in the end"
        assert (report["verified_positions"] > 0) == (bool(rule) and place > 5)
        assert report["nats"] <= rule.get("budget", LONG)
