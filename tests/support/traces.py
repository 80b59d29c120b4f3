"""Requests whose responses are traced in tests, and the divergence that their positions are held against."""

from __future__ import annotations

import math

from cactus_decoding import Budget

PROMPT = "Question: Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?\nAnswer:"

SETTINGS = {
    "lossless": {},
    "cactus": {"rule": "cactus:delta=0.5"},
    "exact cactus, truncated": {"rule": "cactus:delta=0.5,solver=exact", "top_k": 12, "temperature": 0.8},
    "clamped": {"rule": "clamped:width=1.0", "min_p": 0.01},
    "typical": {"rule": "typical", "top_p": 0.9},
    "top-k": {"rule": "top_k:k=20"},
    "temperature 0": {"rule": "cactus:delta=1.0", "temperature": 0},
    "relaxed greedy": {"rule": "relaxed_greedy:margin=1.0", "temperature": 0},
    "relaxed greedy, limited": {"rule": "relaxed_greedy:margin=2.0", "temperature": 0, "budget": 1.0},
    "block": {"rule": "clamped:width=1.0", "verification": "block"},
    "block, limited": {"rule": "ensemble:weight=0.5", "verification": "block", "budget": 0.3},
    "lossless block": {"verification": "block"},
    "limited": {"rule": "cactus:delta=0.5", "budget": 0.8},
    "limited, typical": {"rule": "typical:recovery=sample", "budget": Budget(max_shift=0.5)},
    "paced": {"rule": "clamped:width=1.0", "budget": Budget(nats=0.5, expected_tokens=20)},
    "measured": {"rule": "clamped:width=1.0", "budget": math.inf},
    "no proposals": {"num_speculative_tokens": 0, "rule": "cactus:delta=1.0"},
    "adapting": {"num_speculative_tokens": "confidence:threshold=0.05"},
}

NEEDS_A_MODEL = ("block", "block, limited")
"""Block verification of a relaxed rule, which lookup in the text cannot have."""


def with_each_draft(names):
    lookups = [(name, "ngram") for name in names if name not in NEEDS_A_MODEL]
    return [*((name, "model") for name in names), *lookups]


def kl(h, q):
    return math.fsum(
        a * math.log(a / b) if a > 0 else 0.0 for a, b in zip(h.tolist(), q.tolist(), strict=True) if a > 0
    )
