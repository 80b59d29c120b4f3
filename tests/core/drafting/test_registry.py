"""Drafters by name."""

from __future__ import annotations

import pytest

from cactus_decoding import Drafter, ModelDrafter, NgramDrafter, SuffixDrafter, load_pair
from cactus_decoding.core.drafting.registry import DRAFTERS, LOOK_UPS, check_keeps_nothing, parse_drafter
from cactus_decoding.engines.transformers.early_exit import EarlyExit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ngram", NgramDrafter()),
        ("ngram:max_ngram_size=5,min_ngram_size=2", NgramDrafter(5, 2)),
        ("suffix", SuffixDrafter()),
        ("suffix:min_token_prob=0.5,earlier=1000", SuffixDrafter(0.5, 1000)),
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
        ("suffix:early=9", "parameters of suffix are: min_token_prob, earlier; did you mean 'earlier'"),
        ("suffix:earlier=-1", "earlier must be between 0 and 10000000"),
        ("suffix:min_token_prob=2", "min_token_prob must be in"),
        ("ngram:max_ngram_size=1,min_ngram_size=2", "min_ngram_size must be between 1 and 1"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_drafter(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ngram", NgramDrafter),
        ("suffix", SuffixDrafter),
        ("early_exit:layers=2", ModelDrafter),
    ],
)
def test_each_fits_itself_to_a_target(text, kind):
    assert text.partition(":")[0] in DRAFTERS
    drafter = load_pair(draft=text).drafter
    assert isinstance(drafter, kind)
    assert isinstance(drafter, Drafter)


def test_look_ups_are_named_as_they_are_spelled():
    for name in LOOK_UPS:
        assert str(parse_drafter(name)) == name
    assert str(parse_drafter("suffix:earlier=7,min_token_prob=0.1")) == "suffix:earlier=7"


def test_what_users_of_a_server_must_not_share_is_refused_by_name():
    for text in (*LOOK_UPS, "suffix:earlier=0", "early_exit:layers=3", "org/model"):
        check_keeps_nothing(text)
    with pytest.raises(ValueError, match="earlier shows users each other's answers"):
        check_keeps_nothing("suffix:earlier=1")


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
