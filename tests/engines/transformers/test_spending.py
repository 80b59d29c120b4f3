"""Protection and phases in transformers' `generate`."""

from functools import partial

import pytest
from support.importances import digits_file

from cactus_decoding import load_pair, stream
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.transformers.generate import speculative_generate

PROMPT = "Question: Tom has 4 pens. He buys 2 more pens. How many pens does he have now?\nAnswer:"


@pytest.fixture(scope="module")
def pair():
    return load_pair()


def answer(pair, tokenizer=None, **settings):
    inputs = pair.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    ours = partial(speculative_generate, tokenizer=tokenizer)  # `generate` keeps a tokenizer to itself
    given = {"do_sample": True, "top_k": 0, "max_new_tokens": 60, "seed": 3, "assistant_model": pair.drafter.model}
    output = pair.target.model.generate(**inputs, custom_generate=ours, **(given | settings))
    return output[0, inputs.input_ids.shape[1] :].tolist()


@pytest.mark.parametrize(
    "policy",
    [
        {"protect": "digits"},
        {"protect": "digits", "protect_threshold": 0.2},
        {"lossless_tokens": 9},  # needs no tokenizer
        {"relax_within": ["\n", "="]},
    ],
    ids=str,
)
def test_it_gives_the_tokens_of_our_own_entry(pair, policy):
    metrics = Metrics()
    given = answer(pair, rule="cactus:delta=1", tokenizer=pair.tokenizer, metrics=metrics, **policy)
    response = stream(pair, PROMPT, rule="cactus:delta=1", max_new_tokens=60, seed=3, **policy)
    for _ in response:
        pass
    assert given == response.token_ids
    assert metrics.protected == response.metrics.protected > 0


def test_marks_by_token_ids_need_no_tokenizer(pair):
    ids = [pair.tokenizer(mark, add_special_tokens=False).input_ids for mark in ("\n", " =")]
    assert [len(each) for each in ids] == [1, 1]
    metrics = Metrics()
    given = answer(pair, rule="cactus:delta=1", metrics=metrics, relax_within=ids)
    assert given == answer(pair, tokenizer=pair.tokenizer, rule="cactus:delta=1", relax_within=["\n", " ="])
    assert metrics.protected > 0


@pytest.mark.parametrize("limit", [{"max_importance": 0.3}, {"importance_scale": True}], ids=str)
def test_importance_gives_the_tokens_of_our_own_entry(pair, limit, tmp_path):
    words = Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size)
    policy = {"importance": digits_file(tmp_path, words)} | limit
    metrics = Metrics()
    given = answer(pair, rule="cactus:delta=1", tokenizer=pair.tokenizer, metrics=metrics, **policy)
    response = stream(pair, PROMPT, rule="cactus:delta=1", max_new_tokens=60, seed=3, **policy)
    for _ in response:
        pass
    assert given == response.token_ids
    assert metrics.protected == response.metrics.protected
    assert (metrics.protected > 0) == ("max_importance" in limit)
    with pytest.raises(TypeError, match="tokenizer"):
        answer(pair, **policy)


def test_a_pattern_without_a_tokenizer_is_refused(pair):
    with pytest.raises(TypeError, match="tokenizer"):
        answer(pair, protect="digits")
    with pytest.raises(ValueError, match="none of the"):
        answer(pair, protect="zebra", tokenizer=pair.tokenizer)
