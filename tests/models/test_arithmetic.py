"""In 16 bits the lean forward pass rounds where transformers rounds: its logits are the same, bit for bit."""

from __future__ import annotations

import pytest
import torch
from support.tiny_architectures import LEAN_CONFIGS, LEAN_SIZES, perturbed, random_tokens
from transformers import LlamaConfig

from cactus_decoding.models import lean
from cactus_decoding.models.cached import CachedModel

BLOCKS = [150, 1, 7, 1, 3, 8]
MODELS = LEAN_CONFIGS | {
    "llama, many queries to a key": LlamaConfig(**LEAN_SIZES | {"num_attention_heads": 16, "head_dim": 64})
}


def rows_of(model, forward, blocks=BLOCKS):
    cached, ids = CachedModel(model, forward), random_tokens(sum(blocks))
    return torch.cat([cached.append(ids[cached.length : cached.length + count], rows=count) for count in blocks])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_it_rounds_as_transformers_does_in_16_bits(config, attention, dtype):
    model = perturbed(config, dtype=dtype)
    model.set_attn_implementation(attention)
    assert torch.equal(rows_of(model, "lean"), rows_of(model, "transformers"))


@pytest.mark.parametrize("operation", ["norm", "rotate", "attend"])
def test_the_comparison_would_notice_one_fused_operation(operation, monkeypatch):
    model = perturbed(MODELS["llama, many queries to a key"], dtype=torch.float16)
    fused = lean.arithmetic(torch.float32, model.device, eager=False)
    plain = lean.arithmetic
    changes = {operation: getattr(fused, operation)} | ({"groups": True} if operation == "attend" else {})
    monkeypatch.setattr(lean, "arithmetic", lambda *a, **b: plain(*a, **b)._replace(**changes))
    assert not torch.equal(rows_of(model, "auto"), rows_of(model, "transformers"))
