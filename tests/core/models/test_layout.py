"""Matrices laid out for small products: the same values, whoever reads them."""

from __future__ import annotations

import pytest
import torch
from support.tiny_architectures import LLAMA_CONFIGS, perturbed, plain_logits, random_tokens
from transformers import LlamaForCausalLM

from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.loading import lay_out_for_small_products


def test_the_layout_changes_no_value_and_can_be_saved(tmp_path):
    model, ids = perturbed(LLAMA_CONFIGS["llama, one key head, tied"]), random_tokens(40)
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


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
def test_matrices_of_one_row_or_column_stay_as_they_are(shape):
    model = torch.nn.Sequential(torch.nn.Linear(*shape))
    before = model[0].weight.clone()
    lay_out_for_small_products(model)
    assert torch.equal(model[0].weight, before)
