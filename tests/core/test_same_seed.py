"""With coupled verification a seed gives the text of plain sampling, whatever is proposed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.tiny_architectures import letter_tokenizer
from support.tiny_models import tiny_llama

from cactus_decoding import Pair, generate, speculative_generate
from cactus_decoding.core.drafting.lookup import NgramDrafter, SuffixDrafter
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.types import Drafter, Proposal
from cactus_decoding.engines.transformers.cached_model import CachedModel

LETTERS = letter_tokenizer("abcdefgh")
DRAFTERS = {
    "model": lambda: ModelDrafter(CachedModel(tiny_llama(1))),
    "itself": lambda: ModelDrafter(CachedModel(tiny_llama(0))),
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}
LENGTHS: list[dict[str, Any]] = [
    {"num_speculative_tokens": 1},
    {"num_speculative_tokens": 5},
    {"num_speculative_tokens": "confidence:threshold=0.2"},
    {"num_speculative_tokens": "auto"},
    {"tree": "static=3.2.1"},
    {"tree": "best_first,nodes=8,depth=4"},
]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 0},
    {"top_k": 4},
    {"top_p": 0.8, "temperature": 1.3},
    {"min_p": 0.1},
]


def requests(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], str]]:
    rng = random.Random(seed)
    while count:
        name, length, sampling = rng.choice([*DRAFTERS]), rng.choice(LENGTHS), rng.choice(SAMPLINGS)
        if "tree" in length and name in ("ngram", "suffix"):
            continue
        count -= 1
        prompt = "".join(rng.choice("abcde") for _ in range(rng.randint(1, 12)))
        yield name, length, sampling | {"seed": rng.randrange(2**63)}, prompt


def compare(count: int, seed: int) -> int:
    """Return how many answers there were; each must be that of plain sampling, with caches kept between them."""
    pairs = {name: Pair(CachedModel(tiny_llama(0)), make(), LETTERS) for name, make in DRAFTERS.items()}
    kept = 0
    for name, length, sampling, prompt in requests(count, seed):
        asked = {"verification": "coupled", "max_new_tokens": 24} | sampling
        plain = generate(pairs["model"], prompt, num_speculative_tokens=0, **asked)
        found = generate(pairs[name], prompt, **length, **asked)
        assert found.token_ids == plain.token_ids, (name, length, sampling, prompt)
        kept += found.metrics.accepted
    return kept


def test_the_text_is_that_of_plain_sampling() -> None:
    assert compare(60, seed=1) > 200


@pytest.mark.slow
def test_a_thousand_texts_are_those_of_plain_sampling() -> None:
    assert compare(1000, seed=2) > 4000


def test_with_another_way_to_verify_the_text_depends_on_the_draft() -> None:
    texts = set()
    for name in ("model", "itself", "ngram"):
        pair = Pair(CachedModel(tiny_llama(0)), DRAFTERS[name](), LETTERS)
        texts.add(generate(pair, "abc", seed=1, num_speculative_tokens=4, max_new_tokens=24).text)
    assert len(texts) > 1


class Independent(Drafter):
    """A drafter of somebody else, which draws from the generator that it is given."""

    def propose(self, token_ids, limit, to_probs, generator) -> Proposal:
        size = tiny_llama(0).config.vocab_size
        row = torch.full((limit, size), 1 / size)
        return Proposal(torch.multinomial(row, 1, generator=generator).flatten().tolist(), row)


def test_a_drafter_that_knows_nothing_of_it_changes_no_text() -> None:
    asked = {"verification": "coupled", "seed": 5, "max_new_tokens": 24}
    pair = Pair(CachedModel(tiny_llama(0)), Independent(), LETTERS)
    assert generate(pair, "abc", num_speculative_tokens=4, **asked).token_ids == (
        generate(pair, "abc", num_speculative_tokens=0, **asked).token_ids
    )


@pytest.mark.parametrize("rule", ["clamped:width=2", "ensemble:weight=0.5"])
def test_a_relaxed_text_depends_on_the_draft_but_repeats(rule: str) -> None:
    asked = {"verification": "coupled", "rule": rule, "seed": 3, "max_new_tokens": 24, "num_speculative_tokens": 4}
    pairs = [Pair(CachedModel(tiny_llama(0)), DRAFTERS["model"](), LETTERS) for _ in range(2)]
    first, second = (generate(pair, "abc", **asked) for pair in pairs)
    assert first.token_ids == second.token_ids
    plain = generate(pairs[0], "abc", **asked | {"num_speculative_tokens": 0})
    assert first.token_ids != plain.token_ids


def test_a_rule_that_looks_at_the_drafted_token_is_refused() -> None:
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        generate(
            Pair(CachedModel(tiny_llama(0)), NgramDrafter(), LETTERS),
            "a",
            verification="coupled",
            rule="cactus:delta=1",
        )


def test_without_a_seed_every_text_is_another() -> None:
    pair = Pair(CachedModel(tiny_llama(0)), DRAFTERS["model"](), LETTERS)
    texts = {generate(pair, "abc", verification="coupled", max_new_tokens=24).text for _ in range(3)}
    assert len(texts) == 3


def test_generate_of_transformers_takes_it_too() -> None:
    model, draft, ids = tiny_llama(0), tiny_llama(1), torch.tensor([[1, 2, 3]])
    asked = {"assistant_model": draft, "verification": "coupled", "seed": 4, "max_new_tokens": 20, "do_sample": True}
    texts = [
        speculative_generate(model, ids, num_speculative_tokens=count, **asked).tolist() for count in (0, 1, 3, "auto")
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    drawn = [
        speculative_generate(model, ids, generator=each, **{**asked, "seed": None}).tolist() for each in generators
    ]
    assert drawn[0] == drawn[1] != drawn[2]
