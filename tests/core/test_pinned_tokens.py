"""Same request, same tokens: ten requests under every rule, as the first version of the package answered them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cactus_decoding import generate, load_pair

PINNED = Path(__file__).with_name("pinned_tokens.json")
RULES = (
    "lossless",
    "cactus:delta=0.5",
    "cactus:delta=0.5,solver=exact",
    "ensemble:weight=0.3",
    "lenience:lenience=0.5",
    "clamped:width=1.0",
    "clamped:max_kl=0.1",
    "typical",
    "top_k:k=3,residual=mask",
    "relaxed_greedy:margin=0.5,top=3",
)
QUESTIONS = (
    "Tom has 4 pens. He buys 2 more pens. How many pens does he have now?",
    "Anna has 43 stamps. She gives away 17 stamps. She shares the rest equally among 2 friends. "
    "How many stamps does each friend get?",
)
TRUNCATED = {"temperature": 0.7, "top_k": 20, "top_p": 0.95, "min_p": 0.01}
REQUESTS = (
    {"seed": 1},
    {"seed": 2, "num_speculative_tokens": 3, "max_new_tokens": 40},
    {"seed": 3, **TRUNCATED},
    {"seed": 4, **TRUNCATED, "num_speculative_tokens": "confidence:threshold=0.4"},
    {"seed": 5, "budget": 0.05},
    {"seed": 6, "budget": 0.5, **TRUNCATED},
    {"seed": 7, "budget": {"nats": 0.2, "expected_tokens": 60}},
    {"seed": 8, "verification": "block"},
    {"seed": 9, "draft": "ngram", "stop": ["####"]},
    {"seed": 10, "temperature": 0.0, "num_speculative_tokens": 10},
)


def answer(request: dict, rule: str) -> list[int] | str:
    from cactus_decoding import Budget

    settings = dict(request)
    pair = load_pair(draft=settings.pop("draft", "bundled:draft"))
    if isinstance(settings.get("budget"), dict):
        settings["budget"] = Budget(**settings["budget"])
    if rule.startswith("relaxed_greedy"):
        settings["temperature"] = 0.0
    prompt = f"Question: {QUESTIONS[settings['seed'] % 2]}\nAnswer:"
    try:
        return generate(pair, prompt, rule=rule, **settings).token_ids
    except ValueError:
        return "refused"


@pytest.mark.parametrize("rule", RULES)
def test_every_request_gets_the_tokens_that_it_always_got(rule):
    pinned = json.loads(PINNED.read_text())[rule]
    assert [answer(request, rule) for request in REQUESTS] == pinned


def test_the_pins_tell_rules_and_seeds_apart():
    pinned = json.loads(PINNED.read_text())
    answered = [tuple(tokens) for answers in pinned.values() for tokens in answers[:9] if tokens != "refused"]
    assert len(set(answered)) >= 30


if __name__ == "__main__":
    PINNED.write_text(json.dumps({rule: [answer(request, rule) for request in REQUESTS] for rule in RULES}) + "\n")
