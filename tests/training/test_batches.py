"""Batches: what counts in the loss, and how much."""

from __future__ import annotations

import re

import pytest
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.training.batches import batch


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo.path("target"))


def emphasised(tokenizer, all_numbers):
    """Return, for each row, its solution with the tokens of weight 4 in brackets."""
    ids, weights = batch(tokenizer, 0, 0, 16, emphasis=4.0, all_numbers=all_numbers)
    rows = []
    for row, weight in zip(ids.tolist(), weights.tolist(), strict=True):
        texts = [tokenizer.decode([token]) for token in row]
        marked = [f"[{text}]" if w == 4 else text for text, w in zip(texts, weight, strict=True) if w > 0]
        rows.append("".join(marked))
    return rows


def test_the_emphasis_is_on_results_and_on_what_ends_them(tokenizer):
    for row in emphasised(tokenizer, all_numbers=False):
        for line in row.splitlines():
            before, _, after = line.partition(" =")
            assert "[" not in before.removeprefix("####") or line.startswith("####")
            assert "[" in after or line.startswith("####")


def test_the_emphasis_on_all_numbers_leaves_out_only_digits_that_begin_a_sentence(tokenizer):
    begins = re.compile(r"^( ?|[\w ]+[,:] ?|(Then|So|Now|Therefore) ?)\d")
    for row in emphasised(tokenizer, all_numbers=True):
        for line in row.splitlines():
            outside = re.sub(r"\[[^]]*\]", "", line)
            assert not re.search(r"\d", outside) or begins.match(outside), line
