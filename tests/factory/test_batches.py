"""Training batches: fixed by their seed, of the bundled models' problems or a caller's, and weighted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.zoo.word_problems import WordProblem, word_problems
from factory.batches import batch


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        ({"seed": 1, "index": 5, "size": 8}, "2a500ca85d125a4a"),
        ({"seed": 1, "index": 5, "size": 8, "emphasis": 4.0, "drills": True}, "32b8821b045c1d64"),
        ({"seed": 4, "index": 3, "size": 6, "long": True}, "ffd5aa5448b0b5fe"),
    ],
)
def test_the_batches_that_made_the_bundled_models_stay_as_they_are(arguments, digest):
    input_ids, weights = batch(AutoTokenizer.from_pretrained(zoo.path("target")), **arguments)
    assert hashlib.sha256(input_ids.numpy().tobytes() + weights.numpy().tobytes()).hexdigest()[:16] == digest


def test_rows_are_made_of_the_problems_that_a_source_gives():
    def source(seed: int) -> Iterator[WordProblem]:
        return word_problems("validation", seed=seed)

    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    texts = {
        f"{tokenizer.bos_token}{p.prompt} {p.solution}{tokenizer.eos_token}" for p in islice(source(2 * 1_000_003), 64)
    }
    batches = [batch(tokenizer, 2, index, 4, source=source) for index in range(16)]
    rows = {tokenizer.decode(ids[ids != tokenizer.pad_token_id]) for input_ids, _ in batches for ids in input_ids}
    assert rows == texts
    again = batch(tokenizer, 2, 7, 4, source=source)
    assert all(torch.equal(a, b) for a, b in zip(batches[7], again, strict=True))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo.path("target"))
