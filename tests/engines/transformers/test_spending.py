"""Protection and phases in transformers' `generate`."""

from functools import partial

import pytest

from cactus_decoding import load_pair
from cactus_decoding.core.metrics import Metrics
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


def test_marks_by_token_ids_need_no_tokenizer(pair):
    ids = [pair.tokenizer(mark, add_special_tokens=False).input_ids for mark in ("\n", " =")]
    assert [len(each) for each in ids] == [1, 1]
    metrics = Metrics()
    given = answer(pair, rule="cactus:delta=1", metrics=metrics, relax_within=ids)
    assert given == answer(pair, tokenizer=pair.tokenizer, rule="cactus:delta=1", relax_within=["\n", " ="])
    assert metrics.protected > 0


def test_a_pattern_without_a_tokenizer_is_refused(pair):
    with pytest.raises(TypeError, match="tokenizer"):
        answer(pair, protect="digits")
    with pytest.raises(ValueError, match="none of the"):
        answer(pair, protect="zebra", tokenizer=pair.tokenizer)
