"""Which models the lean forward pass reads, and that it reads them as they are now."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from support.tiny_architectures import LEAN_CONFIGS, LEAN_SIZES, perturbed, plain_logits, random_tokens
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrize import register_parametrization
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM, Qwen3Config
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cactus_decoding import load_pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.engines.transformers.lean.forward import LeanForward
from cactus_decoding.engines.transformers.lean.recognition import lean_obstacle


def uses(cached: CachedModel):
    return type(cached._forward)


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


def with_one_scaling(model):
    model.model.layers[1].self_attn.scaling = 2.0


def with_one_epsilon(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 0.5


def with_no_mask(model):
    for layer in model.model.layers:
        layer.self_attn.is_causal = False


def with_short_embeddings(model):
    model.model.embed_tokens.max_norm = 0.1


def with_parametrization(model):
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    register_parametrization(model.model.layers[0].mlp.up_proj, "weight", Doubled())


def with_low_rank_adapter(model):
    class Adapter(nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer
            self.down = nn.Linear(base_layer.in_features, 2, bias=False)
            self.up = nn.Linear(2, base_layer.out_features, bias=False)

        def forward(self, x):
            return self.base_layer(x) + self.up(self.down(x))

    attention = model.model.layers[0].self_attn
    attention.q_proj = Adapter(attention.q_proj)


CHANGES = [
    with_hook,
    with_wrapped_forward,
    with_replaced_linear,
    with_fewer_layers,
    with_one_scaling,
    with_one_epsilon,
    with_no_mask,
    with_short_embeddings,
    with_parametrization,
    with_low_rank_adapter,
]


def all_scalings(model):
    for layer in model.model.layers:
        layer.self_attn.scaling = 1.0


def all_epsilons(model):
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.5


def factor_of_rotations(model):
    model.model.rotary_emb.attention_scaling = 2.0


def frequencies_in_place(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


# The lean pass has a place for these numbers, which are those of the modules and not of the configuration.
NUMBERS = [all_scalings, all_epsilons, factor_of_rotations, frequencies_in_place]
UNKNOWN = {
    "another architecture": GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=700),
    "biases": LlamaConfig(**LEAN_SIZES, attention_bias=True),
    "biases of the MLP": LlamaConfig(**LEAN_SIZES, mlp_bias=True),
    "another activation": LlamaConfig(**LEAN_SIZES, hidden_act="gelu"),
    "frequencies that change": LlamaConfig(
        **LEAN_SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "a sliding window": Qwen3Config(**LEAN_SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1),
}


@pytest.mark.parametrize("config", UNKNOWN.values(), ids=UNKNOWN)
def test_other_models_keep_transformers_pass(config):
    model, ids = perturbed(config), random_tokens(40)
    cached = CachedModel(model)
    rows = cached.append(ids, rows=40)
    torch.testing.assert_close(rows, plain_logits(model, ids), rtol=0, atol=2e-5)
    assert uses(cached) is GeneralForward


def test_a_subclass_is_another_model():
    assert lean_obstacle(Subclass(LEAN_CONFIGS["llama"])) is not None


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_was_changed_is_read_as_it_is_now(change):
    model, ids = perturbed(LEAN_CONFIGS["llama"]), random_tokens(20)
    cached = CachedModel(model)
    before = cached.append(ids, rows=1)
    change(model)
    cached.reset()
    after = cached.append(ids, rows=1)
    torch.testing.assert_close(after, plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
    assert (after - before).abs().max() > 0.01
    assert uses(cached) is GeneralForward


@pytest.mark.parametrize("change", NUMBERS)
def test_numbers_are_read_where_the_model_reads_them(change):
    model, ids = perturbed(LEAN_CONFIGS["llama"]), random_tokens(20)
    cached = CachedModel(model)
    before = cached.append(ids, rows=1)
    change(model)
    model.config.rms_norm_eps = 0.9  # modules were made with another one
    cached.reset()
    after = cached.append(ids, rows=1)
    torch.testing.assert_close(after, plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
    assert (after - before).abs().max() > 0.001
    assert uses(cached) is LeanForward


def test_a_compiled_model_is_left_to_transformers():
    for module in (lambda model: model, lambda model: model.model.layers[1].mlp):
        model = perturbed(LEAN_CONFIGS["llama"])
        module(model).compile(backend="eager")  # nothing is compiled before the first call
        assert "compiled" in str(lean_obstacle(model))


def test_autocast_is_left_to_transformers():
    model = perturbed(LEAN_CONFIGS["llama"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lean_obstacle(model) == "autocast is on"
    assert lean_obstacle(model) is None


@contextmanager
def patched_class(monkeypatch, model):
    plain = type(model.model.layers[0].mlp).forward
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda self, x: plain(self, x) + 1)
    yield


@contextmanager
def patched_linear(monkeypatch, model):
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: plain(self, x) + 1)
    yield


@contextmanager
def global_hook(monkeypatch, model):
    handle = register_module_forward_hook(
        lambda module, given, output: output + 1 if type(module) is nn.Linear else None
    )
    yield
    handle.remove()


@contextmanager
def other_attention(monkeypatch, model):
    def attend(module, query, key, value, mask, **options):
        output, weights = sdpa_attention_forward(module, query, key, value, mask, **options)
        return output + 1, weights

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, model.config._attn_implementation, attend)
    yield


@contextmanager
def other_attention_for_one_file(monkeypatch, model):
    def attend(module, query, key, value, mask, **options):
        output, weights = sdpa_attention_forward(module, query, key, value, mask, **options)
        return output + 1, weights

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, model.config._attn_implementation, attend)
    yield


PATCHES = [patched_class, patched_linear, global_hook, other_attention, other_attention_for_one_file]


@pytest.mark.parametrize("patched", PATCHES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_is_patched_for_all_models_is_read_as_it_is_now(patched, attention, monkeypatch):
    model, ids = perturbed(LEAN_CONFIGS["qwen3"]), random_tokens(20)
    model.set_attn_implementation(attention)
    cached = CachedModel(model)
    before = cached.append(ids, rows=1)
    assert uses(cached) is LeanForward
    with patched(monkeypatch, model):
        cached.reset()
        after = cached.append(ids, rows=1)
        torch.testing.assert_close(after, plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
    assert (after - before).abs().max() > 0.01
    assert uses(cached) is GeneralForward


def test_new_weights_are_read_as_they_are_now():
    model, ids = perturbed(LEAN_CONFIGS["llama"]), random_tokens(20)
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


def test_the_bundled_pair_is_read_by_the_lean_pass():
    pair = load_pair()
    for model in (pair.target.model, pair.drafter._model.model):
        assert lean_obstacle(model) is None
