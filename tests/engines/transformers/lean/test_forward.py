"""The lean forward pass against transformers' own, on every way to call it."""

from __future__ import annotations

import copy
from itertools import islice

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import LEAN_CONFIGS, perturbed, plain_logits, random_tokens
from transformers import LlamaForCausalLM

from cactus_decoding import generate, load_pair, zoo
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.lean import forward as lean
from cactus_decoding.engines.transformers.lean.forward import LeanForward
from cactus_decoding.engines.transformers.lean.weights import read_weights
from cactus_decoding.zoo.word_problems import word_problems

# Ways to feed 60 tokens: blocks (a negative number rolls that many tokens back, and they are fed again).
PATHS = {
    "all at once": [60],
    "one by one": [1] * 60,
    "blocks": [20, 7, 1, 2, 30],
    "rollbacks": [20, 7, -5, 6, -6, 1, -1, 10, -20, 48],
    "back to nothing": [20, -20, 60],
}


@all_of("path", PATHS.values())
@pytest.mark.parametrize("config", LEAN_CONFIGS.values(), ids=LEAN_CONFIGS)
def test_the_lean_pass_gives_transformers_logits(config, path, monkeypatch):
    monkeypatch.setattr(lean.StaticCache, "MIN_CAPACITY", 4)  # it grows several times
    monkeypatch.setattr(lean, "CHUNK", 16)
    model, ids = perturbed(config), random_tokens(60)
    expected, cached = plain_logits(model, ids), CachedModel(model)
    for count in path:
        if count < 0:
            # what is fed before a rollback is another text: nothing of it may be left
            wrong = [(token + 1) % 50 for token in ids[cached.length + count : cached.length]]
            cached.rollback(cached.length + count)
            cached.append(wrong, rows=1)
            cached.rollback(cached.length + count)
            continue
        start = cached.length
        rows = cached.append(ids[start : start + count], rows=count)
        # float32 with logits of about 3: rounding; one wrong token in the cache is four orders of magnitude away
        torch.testing.assert_close(rows, expected[start : start + count], rtol=0, atol=2e-5)
        assert type(cached._forward) is LeanForward
    assert cached.length == 60


def test_the_comparison_would_notice_one_wrong_token():
    model, ids = perturbed(LEAN_CONFIGS["llama"]), random_tokens(60)
    other = [*ids[:30], (ids[30] + 1) % 50, *ids[31:]]
    assert (plain_logits(model, ids)[31:] - plain_logits(model, other)[31:]).abs().max() > 0.02


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_in_bfloat16_it_is_as_close_to_the_truth_as_transformers(name):
    model, ids = perturbed(LEAN_CONFIGS[name], dtype=torch.bfloat16), random_tokens(200)
    truth = plain_logits(copy.deepcopy(model).float(), ids)
    cached = CachedModel(model)
    ours = torch.cat([cached.append(ids[:150], rows=150), *(cached.append([t], rows=1) for t in ids[150:])])
    theirs = plain_logits(model, ids)
    assert ours.dtype == torch.bfloat16
    assert (ours - truth).abs().mean() < 1.1 * (theirs - truth).abs().mean()


def test_only_the_last_rows_are_returned(monkeypatch):
    monkeypatch.setattr(lean, "CHUNK", 16)
    model, ids = perturbed(LEAN_CONFIGS["llama"]), random_tokens(40)
    for rows in (1, 5, 20, 40):
        kept = CachedModel(model).append(ids, rows=rows)
        torch.testing.assert_close(kept, plain_logits(model, ids)[-rows:], rtol=0, atol=2e-5)


def test_nothing_is_copied_but_what_is_new():
    model = perturbed(LEAN_CONFIGS["qwen3"])
    weights = read_weights(model)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    flat = [weights.embedding, weights.norm, weights.head, *(t for layer in weights.layers for t in layer)]
    assert {tensor.data_ptr() for tensor in flat if tensor is not None} == own

    forward = LeanForward(weights)
    with torch.inference_mode():
        forward.append(torch.tensor(random_tokens(200)), 0, 1)
        places = [store.data_ptr() for store in (*forward._cache.keys, *forward._cache.values)]
        for start in range(200, 255, 5):
            forward.append(torch.tensor(random_tokens(6)), start, 6)
            forward.keep(start + 6, start + 5, [])
        assert [store.data_ptr() for store in (*forward._cache.keys, *forward._cache.values)] == places
        forward.append(torch.tensor(random_tokens(300)), 255, 1)
        assert forward._cache.capacity == 555  # more than twice of what there was
        forward.append(torch.tensor(random_tokens(6)), 555, 6)
        assert forward._cache.capacity == 700  # not beyond the window


@pytest.mark.slow
def test_the_bundled_pair_at_temperature_zero_says_what_transformers_says():
    pair = load_pair()
    plain = LlamaForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32).eval()
    for problem in islice(word_problems("validation", seed=0), 30):
        ids = pair.tokenizer(problem.prompt, return_tensors="pt").input_ids
        expected = plain.generate(ids, do_sample=False, max_new_tokens=200)[0, ids.shape[1] :]
        response = generate(pair, problem.prompt, temperature=0, max_new_tokens=200)
        assert response.token_ids == expected.tolist()
