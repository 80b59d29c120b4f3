"""The lean forward pass against transformers' own, on every way to call it, and when it is chosen."""

from __future__ import annotations

import copy
from itertools import islice

import pytest
import torch
from support.tiny_architectures import perturbed, plain_logits, random_tokens
from support.tiny_models import tiny_llama
from torch import nn
from transformers import (
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
)

from cactus_decoding import generate, load_pair, zoo
from cactus_decoding.models import lean, static_cache
from cactus_decoding.models.cached import CachedModel
from cactus_decoding.models.layout import lay_out_for_small_products
from cactus_decoding.models.lean import LeanForward
from cactus_decoding.models.transformers import GeneralForward
from cactus_decoding.models.weights import read_weights
from cactus_decoding.zoo.word_problems import word_problems

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,  # not hidden_size / heads
    "max_position_embeddings": 700,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 175}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 10000.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
KNOWN = {
    "llama": LlamaConfig(**SIZES),
    "llama, a key head for each query head": LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "llama, one key head, tied": LlamaConfig(**SIZES | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "llama with llama3 frequencies": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama with yarn frequencies": LlamaConfig(**SIZES, rope_parameters=YARN),
    "qwen2": Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"}),
    "qwen3": Qwen3Config(**SIZES),
}


def uses(cached: CachedModel):
    return type(cached._forward)


# Ways to feed 60 tokens: blocks (a negative number rolls that many tokens back, and they are fed again).
PATHS = {
    "all at once": [60],
    "one by one": [1] * 60,
    "blocks": [20, 7, 1, 2, 30],
    "rollbacks": [20, 7, -5, 6, -6, 1, -1, 10, -20, 48],
    "back to nothing": [20, -20, 60],
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("config", KNOWN.values(), ids=KNOWN)
def test_the_lean_pass_gives_transformers_logits(config, path, monkeypatch):
    monkeypatch.setattr(static_cache.StaticCache, "MIN_CAPACITY", 4)  # it grows several times
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
        assert uses(cached) is LeanForward
    assert cached.length == 60


def test_the_comparison_would_notice_one_wrong_token():
    model, ids = perturbed(KNOWN["llama"]), random_tokens(60)
    other = [*ids[:30], (ids[30] + 1) % 50, *ids[31:]]
    assert (plain_logits(model, ids)[31:] - plain_logits(model, other)[31:]).abs().max() > 0.02


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_in_bfloat16_it_is_as_close_to_the_truth_as_transformers(name):
    model, ids = perturbed(KNOWN[name], dtype=torch.bfloat16), random_tokens(200)
    truth = plain_logits(copy.deepcopy(model).float(), ids)
    cached = CachedModel(model)
    ours = torch.cat([cached.append(ids[:150], rows=150), *(cached.append([t], rows=1) for t in ids[150:])])
    theirs = plain_logits(model, ids)
    assert ours.dtype == torch.bfloat16
    assert (ours - truth).abs().mean() < 1.1 * (theirs - truth).abs().mean()


def test_only_the_last_rows_are_returned(monkeypatch):
    monkeypatch.setattr(lean, "CHUNK", 16)
    model, ids = perturbed(KNOWN["llama"]), random_tokens(40)
    for rows in (1, 5, 20, 40):
        kept = CachedModel(model).append(ids, rows=rows)
        torch.testing.assert_close(kept, plain_logits(model, ids)[-rows:], rtol=0, atol=2e-5)


def test_nothing_is_copied_but_what_is_new():
    model = perturbed(KNOWN["qwen3"])
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


class Subclass(LlamaForCausalLM):
    pass


def with_hook(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, given, output: output + 1)


def with_wrapped_forward(model):
    plain = model.model.layers[0].self_attn.o_proj.forward
    model.model.layers[0].self_attn.o_proj.forward = lambda x: plain(x) + 1


def with_replaced_linear(model):
    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    old = model.model.layers[2].mlp.up_proj
    model.model.layers[2].mlp.up_proj = Adapted(old.in_features, old.out_features, bias=False)


def with_fewer_layers(model):
    model.config.num_hidden_layers = 2


CHANGES = [with_hook, with_wrapped_forward, with_replaced_linear, with_fewer_layers]
UNKNOWN = {
    "another architecture": GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=700),
    "biases": LlamaConfig(**SIZES, attention_bias=True),
    "biases of the MLP": LlamaConfig(**SIZES, mlp_bias=True),
    "another activation": LlamaConfig(**SIZES, hidden_act="gelu"),
    "frequencies that change": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "a sliding window": Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1),
}


@pytest.mark.parametrize("config", UNKNOWN.values(), ids=UNKNOWN)
def test_other_models_keep_transformers_pass(config):
    model, ids = perturbed(config), random_tokens(40)
    cached = CachedModel(model)
    rows = cached.append(ids, rows=40)
    torch.testing.assert_close(rows, plain_logits(model, ids), rtol=0, atol=2e-5)
    assert uses(cached) is GeneralForward


def test_a_subclass_is_another_model():
    assert read_weights(Subclass(KNOWN["llama"])) is None


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_read_as_it_is_now(change):
    model, ids = perturbed(KNOWN["llama"]), random_tokens(20)
    cached = CachedModel(model)
    before = cached.append(ids, rows=1)
    change(model)
    cached.reset()
    after = cached.append(ids, rows=1)
    torch.testing.assert_close(after, plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
    assert (after - before).abs().max() > 0.01
    assert uses(cached) is GeneralForward


def test_new_weights_are_read_as_they_are_now():
    model, ids = perturbed(KNOWN["llama"]), random_tokens(20)
    cached = CachedModel(model)
    cached.append(ids, rows=1)
    model.lm_head = nn.Linear(32, 50, bias=False)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
    cached.reset()
    torch.testing.assert_close(cached.append(ids, rows=1), plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
    model.double()
    cached.reset()
    # the model's norms and rotations work in float32
    torch.testing.assert_close(cached.append(ids, rows=1), plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
    assert uses(cached) is LeanForward


def test_extra_inputs_call_for_transformers_pass():
    cached = CachedModel(tiny_llama(0))
    cached.extra_inputs = {"output_hidden_states": True}
    cached.append([1, 2, 3], rows=1)
    assert len(cached.outputs.hidden_states) == 3
    cached.extra_inputs = {"output_hidden_states": True}  # the same again is no change
    with pytest.raises(ValueError, match="while the cache is empty, but it holds 3 tokens"):
        cached.extra_inputs = {}
    cached.reset()
    cached.append([1, 2, 3], rows=1)
    assert cached.outputs is None


def test_the_layout_changes_no_value_and_can_be_saved(tmp_path):
    model, ids = perturbed(KNOWN["llama, one key head, tied"]), random_tokens(40)
    expected, before = plain_logits(model, ids), {name: p.clone() for name, p in model.named_parameters()}
    lay_out_for_small_products(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not model.model.layers[0].mlp.up_proj.weight.is_contiguous()
    assert model.lm_head.weight.is_contiguous()  # it is the embedding
    torch.testing.assert_close(plain_logits(model, ids), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(CachedModel(model).append(ids, rows=40), expected, rtol=0, atol=2e-5)
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in loaded.named_parameters())


def test_the_bundled_pair_is_read_by_the_lean_pass():
    pair = load_pair()
    for model in (pair.target.model, pair.drafter._model.model):
        assert read_weights(model) is not None


@pytest.mark.slow
def test_the_bundled_pair_at_temperature_zero_says_what_transformers_says():
    pair = load_pair()
    plain = LlamaForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32).eval()
    for problem in islice(word_problems("validation", seed=0), 30):
        ids = pair.tokenizer(problem.prompt, return_tensors="pt").input_ids
        expected = plain.generate(ids, do_sample=False, max_new_tokens=200)[0, ids.shape[1] :]
        response = generate(pair, problem.prompt, temperature=0, max_new_tokens=200)
        assert response.token_ids == expected.tolist()
