"""Requests at temperature 0 for a real engine, and the answers and reports of this package's own loop to them."""

from __future__ import annotations

from functools import cache
from itertools import islice

import torch

from cactus_decoding import Pair, Request, SamplingParams, load_pair
from cactus_decoding.core.counters import REPORT_KEY, REPORTED, ResponseCounts
from cactus_decoding.core.response import begin
from cactus_decoding.engines.vllm.extra_args import request_of
from cactus_decoding.zoo import word_problems

PROPOSALS, MAX_TOKENS = 3, 40
NEAR = "relaxed_greedy:margin=0.3"
KINDS: tuple[dict, ...] = (
    {},
    {"acceptance_rule": NEAR},
    {"acceptance_rule": "relaxed_greedy:margin=0.1,per=remaining"},
    {"acceptance_rule": "relaxed_greedy:margin=0.1,per=remaining", "num_speculative_tokens": 2},
    {"acceptance_rule": "relaxed_greedy:margin=8,top=2"},
    {"acceptance_rule": "mars:ratio=0.97"},
    {"acceptance_rule": "mars:ratio=0.98,logits=raw"},
    {"acceptance_rule": "big_little:rollback=1.4"},
    {"acceptance_rule": NEAR, "budget": 0.4},
    {"acceptance_rule": "big_little:rollback=2.5", "budget": 0.25, "protect": "digits"},
    {"acceptance_rule": "relaxed_greedy:margin=8", "protect": "digits|negation", "protect_threshold": 0.3},
    {"acceptance_rule": "mars:ratio=0.97", "lossless_tokens": 9},
    {"acceptance_rule": NEAR, "relax_within": [",", "."]},
    {"acceptance_rule": "relaxed_greedy:margin=8", "budget": 0.0},
)
"""What requests ask for."""
LIMITS = ("budget", "protect", "lossless_tokens", "relax_within")


def without(asked: dict, key: str) -> dict:
    return {name: value for name, value in asked.items() if not name.startswith(key)}


def prompts(count: int) -> list[list[int]]:
    problems = islice(word_problems.word_problems("validation"), count)
    return [pair().tokenizer(problem.prompt).input_ids for problem in problems]


def sampling(asked: dict) -> dict:
    extra = {**asked, REPORT_KEY: True}
    return {"temperature": 0.0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "extra_args": extra}


@cache
def pair() -> Pair:
    return load_pair(draft="bundled:draft", dtype=torch.float32)


def own_answer(prompt: list[int], asked: dict) -> tuple[list[int], dict]:
    """Return what this package's loop answers, and its report; the first step proposes nothing, as in vLLM."""
    request = request_of(asked, greedy=True) or Request(sampling=SamplingParams(temperature=0.0))
    request = request.proposing(asked.get("num_speculative_tokens", PROPOSALS))
    end = len(prompt) + MAX_TOKENS
    counts = ResponseCounts()
    response = begin(pair(), request, prompt, first_alone=True, stop=lambda token_ids: len(token_ids) == end)
    for outcome in response:
        counts.add(outcome)
    return response.token_ids, {name: counts.report()[name] for name in REPORTED}
