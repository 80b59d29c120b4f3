"""Which responses learn, what they hand on, and that a draft may read the end of a text only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny_architectures import letter_tokenizer
from support.tiny_models import tiny_llama

from cactus_decoding import ModelDrafter, NgramDrafter, Pair, SamplingParams, generate
from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.drafting.automatic.experience import Experience
from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.drafting.measuring import place_of_pair
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.engines.transformers.cached_model import CachedModel

LETTERS = letter_tokenizer("abcdefgh")
TEXT = [(5 * i * i) % 7 for i in range(30)]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Any, Experience]:
    found: dict[Any, Experience] = {}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cactus_decoding.core.drafting.automatic.experience.EXPERIENCES", found)
    return found


def pair(drafter: Any = None) -> Pair:
    return Pair(CachedModel(tiny_llama(0)), drafter or ModelDrafter(CachedModel(tiny_llama(0))), LETTERS)


AUTO: dict[str, Any] = {"num_speculative_tokens": "auto", "max_new_tokens": 24}


@pytest.mark.parametrize(
    ("how", "learns"),
    [
        ({"seed": 1}, False),
        ({"seed": 1, "temperature": 0}, True),
        ({"seed": 1, "temperature": 0, "rule": "relaxed_greedy:margin=1"}, False),
        ({"seed": 1, "verification": "coupled"}, True),
        ({"seed": 1, "num_speculative_tokens": "auto:learns=always"}, True),
        ({"seed": None}, True),
        ({"seed": None, "rule": "cactus:delta=1"}, True),
    ],
    ids=str,
)
def test_a_seed_that_has_to_repeat_a_text_keeps_a_response_from_learning(
    known: dict[Any, Experience], how: dict[str, Any], learns: bool
) -> None:
    generate(pair(), "abc", **AUTO | how)
    assert [each.times.known for each in known.values()] == [True] * learns


def test_responses_of_one_pair_learn_from_each_other(known: dict[Any, Experience]) -> None:
    one = pair()
    first = generate(one, "abc", temperature=0, **AUTO)
    (experience,) = known.values()
    kept = [*experience.drafts.shares]
    again = generate(one.twin(), "abc", temperature=0, **AUTO)
    assert [*known.values()] == [experience]
    assert again.token_ids == first.token_ids
    assert experience.drafts.shares != kept
    generate(pair(NgramDrafter()), "abc", temperature=0, **AUTO)
    assert len(known) == 2


def test_a_seed_repeats_a_text_whatever_was_learnt() -> None:
    texts = []
    for _ in range(2):
        texts.append([generate(pair(), "abc", seed=seed, **AUTO).text for seed in range(4)])
        generate(pair(), "abc", temperature=0, **AUTO)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_reads_the_end_proposes_what_follows_from_that(temperature: float) -> None:
    to_probs = SamplingFn(SamplingParams(temperature=temperature))

    def proposed(text: list[int], start: int, noise: torch.Generator) -> list[int]:
        drafter = ModelDrafter(CachedModel(tiny_llama(1)))
        drafter.begin_response(None, FixedLength(5))
        drafter.start = start
        made = list[int]()
        for length in (20, 23, 30):  # it reads on
            made += drafter.propose(text[:length], 5, to_probs, noise).token_ids
        drafter.start = 8  # or anew, nearer to the end
        return made + drafter.propose(text, 5, to_probs, noise).token_ids

    class Shifted(SharedNoise):
        """The noise of a text that begins five tokens later."""

        def token(self, weights, place):
            return super().token(weights, place - 5)

    found = proposed(TEXT, 5, Shifted(seed=3))
    drafter = ModelDrafter(CachedModel(tiny_llama(1)))
    drafter.begin_response(None, FixedLength(5))
    noise = SharedNoise(seed=3)
    expected = [drafter.propose(TEXT[5:length], 5, to_probs, noise).token_ids for length in (20, 23, 30)]
    assert found[:15] == [token for each in expected for token in each]
    assert len(found) == 20


def test_a_text_is_the_same_where_the_draft_reads_its_end(
    known: dict[Any, Experience], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, prompt = pair(), "abcdefgh" * 4
    plain = generate(one, prompt, temperature=0, num_speculative_tokens=0, max_new_tokens=24)
    starts = list[int]()

    class Watched(ModelDrafter):
        def propose(self, token_ids, limit, to_probs, generator):
            starts.append(self.start)
            return super().propose(token_ids, limit, to_probs, generator)

    other = pair(Watched(CachedModel(tiny_llama(0))))
    experience = Experience(AutoLength().times(other.target, other.drafter), 15)
    monkeypatch.setattr("cactus_decoding.core.drafting.automatic.experience._LEAST", 0.3)
    experience.balance = 0.3  # of which half may be spent on reading at 0.01 a token
    known[str(place_of_pair(other.target, other.drafter)[0]), 15] = experience
    found = generate(other, prompt, temperature=0, **AUTO)
    assert found.token_ids == plain.token_ids
    assert max(starts, default=0) > 0


def test_times_are_those_of_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pair()
    here, about = place_of_pair(one.target, one.drafter)
    assert about["build"] == one.target.build == about["draft"][-1]
    monkeypatch.setattr(CachedModel, "build", "another")
    assert place_of_pair(one.target, one.drafter)[0] != here
