"""The lean forward pass is compared with the model's own, so that patches that nobody thought of are noticed."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import LEAN_CONFIGS, perturbed, plain_logits, random_tokens
from support.tiny_models import tiny_llama
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.llama import modeling_llama

from cactus_decoding import load_pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.engines.transformers.lean import agreement
from cactus_decoding.engines.transformers.lean.agreement import allowed_difference, read_if_lean, relative_difference
from cactus_decoding.engines.transformers.lean.forward import LeanForward
from cactus_decoding.engines.transformers.lean.weights import read_weights


def rotated_further(monkeypatch):
    plain = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *rest: plain(2 * q, k, *rest))


def another_kernel(monkeypatch):
    plain = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", lambda *a, **b: plain(*a, **b) + 0.1)


def another_call(monkeypatch):
    plain = nn.Module.__call__
    monkeypatch.setattr(modeling_llama.LlamaMLP, "__call__", lambda self, x: plain(self, x) + 1)


def another_activation(monkeypatch):
    monkeypatch.setattr(nn.functional, "silu", nn.functional.gelu)


PATCHES = [rotated_further, another_kernel, another_call, another_activation]


@pytest.mark.parametrize("patch", PATCHES)
def test_what_no_list_names_is_noticed_between_two_responses(patch, monkeypatch):
    model, ids = perturbed(LEAN_CONFIGS["llama"]), random_tokens(20)
    cached = CachedModel(model)
    before = cached.append(ids, rows=1)
    assert type(cached._forward) is LeanForward
    cached.reset()
    with monkeypatch.context() as patched:
        patch(patched)
        with pytest.warns(UserWarning, match="LlamaForCausalLM is read by transformers' own forward pass"):
            after = cached.append(ids, rows=1)
        torch.testing.assert_close(after, plain_logits(model, ids)[-1:], rtol=0, atol=2e-5)
        assert type(cached._forward) is GeneralForward
        with warnings.catch_warnings(action="error"):
            cached.reset()
            cached.append(ids, rows=1)  # it was said once
            with pytest.raises(ValueError, match=r"forward='lean' cannot read LlamaForCausalLM: its logits differ"):
                CachedModel(model, "lean")
    assert (after - before).abs().max() > 0.01
    cached.reset()
    torch.testing.assert_close(cached.append(ids, rows=1), before, rtol=0, atol=0)
    assert type(cached._forward) is LeanForward


BEFORE_IMPORT = """
import functools, warnings, torch
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2

class Louder(llama.LlamaMLP):
    def __call__(self, x):
        return super().__call__(x) + 1

plain = qwen2.Qwen2MLP.forward

@functools.wraps(plain)  # it says that it is from transformers' file
def louder(self, x):
    return plain(self, x) + 1

llama.LlamaMLP = Louder
qwen2.Qwen2MLP.forward = louder
from cactus_decoding.engines.transformers.cached_model import CachedModel

sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4)
ids = list(range(20))
for model in (llama.LlamaForCausalLM(llama.LlamaConfig(**sizes)), qwen2.Qwen2ForCausalLM(qwen2.Qwen2Config(**sizes))):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rows = CachedModel(model.eval()).append(ids, rows=20)
    with torch.no_grad():
        print(float((rows - model(torch.tensor([ids])).logits[0]).abs().max()), len(said))
"""


@pytest.mark.slow
def test_what_was_replaced_before_the_import_is_noticed():
    run = subprocess.run([sys.executable, "-c", BEFORE_IMPORT], capture_output=True, text=True, check=True)
    for line in run.stdout.splitlines():
        difference, said = line.split()
        assert float(difference) < 2e-5
        assert said == "1"
    assert len(run.stdout.splitlines()) == 2


@all_of("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("config", LEAN_CONFIGS.values(), ids=LEAN_CONFIGS)
def test_rounding_is_far_from_what_is_allowed(config, dtype):
    model = perturbed(config, dtype=dtype)
    assert relative_difference(model, read_weights(model)) < allowed_difference(dtype) / 10


def test_the_bundled_pair_agrees():
    pair = load_pair()
    for model in (pair.target.model, pair.drafter.model):
        assert relative_difference(model, read_weights(model)) < 3e-6


def test_both_passes_are_compared_once_for_each_model(monkeypatch):
    model, compared = perturbed(LEAN_CONFIGS["llama"]), []
    plain = agreement.relative_difference
    monkeypatch.setattr(agreement, "relative_difference", lambda *given: compared.append(1) or plain(*given))
    cached = CachedModel(model)
    for _ in range(3):
        cached.append([1, 2, 3], rows=1)
        cached.reset()
        CachedModel(model).append([1, 2, 3], rows=1)
    assert len(compared) == 1
    with torch.no_grad():  # weights are read anew each time, and so need no comparison
        model.lm_head.weight.mul_(2)
    CachedModel(model).append([1, 2, 3], rows=1)
    assert len(compared) == 1
    model.model.layers[1].self_attn.something = 0.5
    CachedModel(model).append([1, 2, 3], rows=1)
    assert len(compared) == 2


def test_a_comparison_keeps_no_model_alive():
    model = perturbed(LEAN_CONFIGS["llama"])
    model.plain_generate = model.generate  # a bound method holds the model
    assert not isinstance(read_if_lean(model), str)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


def test_a_broken_model_is_as_broken_in_both_passes():
    model = perturbed(LEAN_CONFIGS["llama"])
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    weights = read_weights(model)
    assert relative_difference(model, weights) < 1e-5
    assert relative_difference(model, weights._replace(head=weights.head.nan_to_num())) == torch.inf


def test_a_precision_of_matrix_products_is_respected(monkeypatch):
    assert allowed_difference(torch.float64) == allowed_difference(torch.float32) < allowed_difference(torch.float16)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert allowed_difference(torch.float32) == allowed_difference(torch.bfloat16)
    assert allowed_difference(torch.float64) < 1e-3


def test_a_forward_pass_is_chosen_by_name():
    llama, gpt2 = tiny_llama(0), GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=16, n_layer=1, n_head=2))
    rows = {}
    for forward, kind in {"auto": LeanForward, "lean": LeanForward, "transformers": GeneralForward}.items():
        cached = CachedModel(llama, forward)
        rows[forward] = cached.append([1, 2, 3], rows=3)
        assert type(cached._forward) is kind
    torch.testing.assert_close(rows["lean"], rows["transformers"], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"forward='lean' cannot read GPT2LMHeadModel: its class is .* none of Llama"):
        CachedModel(gpt2, "lean")
    with pytest.raises(ValueError, match="forward must be one of auto, lean, transformers, but is 'fast'"):
        CachedModel(llama, "fast")
    insisting = CachedModel(llama, "lean")
    insisting.extra_inputs = {"output_hidden_states": True}
    with pytest.raises(ValueError, match="cannot read LlamaForCausalLM: it knows no output_hidden_states"):
        insisting.append([1, 2, 3], rows=1)
