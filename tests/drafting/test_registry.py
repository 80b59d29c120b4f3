"""Drafters by name."""

from __future__ import annotations

import pytest

from cactus_decoding import Drafter, ModelDrafter, NgramDrafter, load_pair
from cactus_decoding.drafting.early_exit import EarlyExit
from cactus_decoding.drafting.registry import DRAFTERS, parse_drafter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ngram", NgramDrafter()),
        ("ngram:max_ngram_size=5,min_ngram_size=2", NgramDrafter(5, 2)),
        ("early_exit:layers=3", EarlyExit(3)),
        ("org/ngram-model", None),
        ("./ngram", None),
    ],
)
def test_names_and_parameters(text, expected):
    assert parse_drafter(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("early_exit", "lacks layers"),
        ("early_exit:layers=0", "layers must be at least 1"),
        ("ngram:size=2", "parameters of ngram are: max_ngram_size"),
        ("ngram:max_ngram_size=1,min_ngram_size=2", "min_ngram_size must be between 1 and 1"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_drafter(text)


@pytest.mark.parametrize(("text", "kind"), [("ngram", NgramDrafter), ("early_exit:layers=2", ModelDrafter)])
def test_each_fits_itself_to_a_target(text, kind):
    assert text.partition(":")[0] in DRAFTERS
    drafter = load_pair(draft=text).drafter
    assert isinstance(drafter, kind)
    assert isinstance(drafter, Drafter)


def test_a_drafter_need_not_have_more_than_propose():
    class Silent(Drafter):
        def propose(self, token_ids, limit, to_probs, generator):
            raise NotImplementedError

    silent = Silent()
    silent.begin_response(None, None)
    silent.reset()
    assert silent.max_length is None
    assert not silent.fixed_blocks
    with pytest.raises(TypeError, match="a Silent cannot be shared"):
        silent.twin()
