"""One text per seed: with and without a draft, alone and among others, with few proposals and many, and as the package.

What is compared are tokens in float32; no two rows of these texts are so close to a tie that rounding decides.
"""

import pytest
from engine_run import run_jobs
from mixed_load import QUESTIONS
from transformers import AutoTokenizer

from cactus_decoding import generate, load_pair, zoo

pytestmark = pytest.mark.engine

TOKENS = 40
COUPLED = {"verification": "coupled"}
SAMPLING: tuple[dict, ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "top_k": 50, "top_p": 0.8},
)
TEXTS = [f"Question: {question}\nAnswer:" for question in QUESTIONS]


def asking(place: int, **further: object) -> dict:
    base = {"max_tokens": TOKENS, "ignore_eos": True, "seed": place}
    return base | SAMPLING[place % len(SAMPLING)] | {"extra_args": COUPLED | further}


def test_a_seed_gives_one_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    texts = [TEXTS[place % len(TEXTS)] for place in range(12)]
    prompts = [tokenizer(text).input_ids for text in texts]
    places = range(len(prompts))
    together = {"prompts": prompts, "sampling": [asking(place) for place in places]}
    alone = together | {"at_once": 1}
    others = [{"temperature": 1.0, "max_tokens": TOKENS}, {"temperature": 0.0, "max_tokens": TOKENS}]
    beside = {"prompts": [each for prompt in prompts for each in (prompt, prompt)], "sampling": [
        one for place in places for one in (asking(place), others[place % 2])
    ]}  # fmt: skip
    fewer = together | {"sampling": [asking(place, num_speculative_tokens=place % 3) for place in places]}
    penalized = together | {"sampling": [asking(place) | {"frequency_penalty": 0.5} for place in places]}
    uncoupled = together | {"sampling": [asking(place) | {"extra_args": None} for place in places]}
    draft = {"model": str(zoo.path("draft"))}
    greedy = run_jobs(
        [together, alone, beside, fewer, penalized, uncoupled],
        speculative_config=draft | {"num_speculative_tokens": 3},
    )
    drawn = run_jobs(
        [together, penalized],
        speculative_config=draft | {"num_speculative_tokens": 5, "draft_sample_method": "probabilistic"},
    )
    plain = run_jobs([together, alone, penalized], speculative_config=None)
    expected = plain[0]["token_ids"]
    assert [len(tokens) for tokens in expected] == [TOKENS] * len(prompts)
    for result in (plain[1], greedy[0], greedy[1], greedy[3], drawn[0]):
        assert result["token_ids"] == expected
    assert greedy[2]["token_ids"][::2] == expected
    assert greedy[4]["token_ids"] == drawn[1]["token_ids"] == plain[2]["token_ids"] != expected
    assert greedy[5]["token_ids"] != expected, "by default vLLM draws in another way"
    for result, least in (*((each, 0.3) for each in greedy), *((each, 0.1) for each in drawn)):
        assert result["counters"]["accepted_tokens"] > least * result["counters"]["draft_tokens"] > 0
    pair = load_pair()
    for place, text in enumerate(texts):
        own = generate(
            pair, text, seed=place, max_new_tokens=TOKENS, verification="coupled", **SAMPLING[place % len(SAMPLING)]
        )
        ids = list(own.token_ids)
        assert ids
        assert expected[place][: len(ids)] == ids, "as by this package's own loop"
