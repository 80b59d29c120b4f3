"""With coupled verification a seed gives the text of plain sampling, whatever is proposed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_architectures import letter_tokenizer
from support.tiny_models import tiny_llama

from cactus_decoding import Pair, SamplingParams, generate, speculative_generate
from cactus_decoding.core.drafting.lookup import NgramDrafter, SuffixDrafter
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.types import Drafter, Proposal
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import word_problems
from scripts.same_seed import DRAFTERS as NAMED
from scripts.same_seed import compare, margin, requests

LETTERS = letter_tokenizer("abcdefgh")
DRAFTERS = {
    "model": lambda: ModelDrafter(CachedModel(tiny_llama(1))),
    "itself": lambda: ModelDrafter(CachedModel(tiny_llama(0))),
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}
FITTED = {name: lambda pair, make=make: replace(pair, drafter=make()) for name, make in DRAFTERS.items()}
PROMPTS = ["a", "eb", "abcde", "ddddd", "abcabcabc", "cabbagebed"]


def compared(count: int, seed: int, verification: str = "coupled") -> dict[str, Any]:
    """Answer random requests with tiny models, with caches kept between them."""
    pool = PairPool([Pair(CachedModel(tiny_llama(0)), DRAFTERS["model"](), LETTERS)])
    return compare(pool, requests(count, seed, PROMPTS, FITTED, trees=True), FITTED, 24, verification)


@pytest.mark.parametrize(("count", "seed"), [(60, 1), pytest.param(240, 2, marks=pytest.mark.slow)])
def test_the_text_is_that_of_plain_sampling(count: int, seed: int) -> None:
    found = compared(count, seed)
    assert found["apart"] == []
    assert found["equal"] >= 0.98 * count - 1  # else ties are not what parts them
    assert found["accepted"] > 3 * count


def test_texts_of_another_verification_part_where_nothing_is_tied() -> None:
    found = compared(12, seed=3, verification="token")
    assert len(found["apart"]) > 6


@pytest.mark.slow
def test_the_text_is_that_of_plain_sampling_beside_other_requests(gguf) -> None:
    file = parse_gguf(f"{gguf('target')}:context_size=512,cache=float32,threads=1")
    pool = PairPool.load(file, f"{gguf('worded')}:cache=float32", 3, 3)
    prompts = [problem.prompt for problem in islice(word_problems("test"), 6)]
    asked = requests(24, 4, prompts, NAMED, trees=False)
    found = compare(pool, asked, NAMED, 40)
    assert found["apart"] == []
    assert found["equal"] >= 22


def test_a_margin_is_that_of_scores_or_of_a_cut() -> None:
    def near(logits: list[float], tokens: tuple[int, int], **sampling: float) -> float:
        return margin(torch.tensor(logits), SamplingParams(**sampling), SharedNoise(1), 5, tokens)

    logits, noise = [3.0, 1.0, 0.0, -1.0], SharedNoise(1)
    gumbel = -np.log(-np.log1p(-noise.uniforms(5, 4)))
    assert near(logits, (0, 2)) == pytest.approx(abs(3 + gumbel[0] - gumbel[2]))
    assert near(logits, (0, 2), temperature=0) == 3
    tie = 1.0 + gumbel[1] - gumbel[2]  # the score of token 1, less the noise of token 2
    assert near([3.0, 1.0, tie, -1.0], (1, 2)) == pytest.approx(0, abs=1e-6)
    assert near([3.0, 1.0, 1.0, -9.0], (0, 3), top_k=2) == 0
    row = torch.tensor(logits).softmax(-1).double()
    assert near(logits, (0, 1), top_p=float(row[:2].sum())) == pytest.approx(0, abs=1e-6)
    assert near(logits, (0, 1), min_p=float(row[1] / row[0])) == pytest.approx(0, abs=1e-6)
    assert min(near(logits, (0, 1), top_k=2), near(logits, (0, 1), top_p=0.5), near(logits, (0, 1), min_p=0.5)) > 0.01


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
    asked |= {"num_speculative_tokens": None}
    assert (
        str(generate(pairs[0], "abc", **asked).request.draft_length) == "6"
    )  # as `auto` would break the rule's promise


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
