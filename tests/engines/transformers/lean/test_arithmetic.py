"""In 16 bits the lean forward pass rounds where transformers rounds: its logits are the same, bit for bit."""

from __future__ import annotations

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import LEAN_CONFIGS, LEAN_SIZES, perturbed, random_tokens
from transformers import LlamaConfig

from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.lean import forward as lean
from cactus_decoding.engines.transformers.lean.arithmetic import arithmetic

BLOCKS = [150, 1, 7, 1, 3, 8]
MODELS = LEAN_CONFIGS | {
    "llama, many queries to a key": LlamaConfig(**LEAN_SIZES | {"num_attention_heads": 16, "head_dim": 64})
}


def rows_of(model, forward, blocks=BLOCKS):
    cached, ids = CachedModel(model, forward), random_tokens(sum(blocks))
    return torch.cat([cached.append(ids[cached.length : cached.length + count], rows=count) for count in blocks])


@all_of("dtype", [torch.bfloat16, torch.float16])
@all_of("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_it_rounds_as_transformers_does_in_16_bits(config, attention, dtype):
    model = perturbed(config, dtype=dtype)
    model.set_attn_implementation(attention)
    assert torch.equal(rows_of(model, "lean"), rows_of(model, "transformers"))


def further_from_zero(numbers):
    """One unit in the last place of 16 bits, whatever kernel computed them."""
    return torch.nextafter(numbers, 2 * numbers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operation", ["norm", "rotate", "attend"])
def test_the_comparison_would_notice_one_operation_that_rounds_otherwise(operation, dtype, monkeypatch):
    model = perturbed(MODELS["llama, many queries to a key"], dtype=dtype)

    def off_by_one(*given, **options):
        plain = arithmetic(*given, **options)
        right = getattr(plain, operation)
        return plain._replace(**{operation: lambda *x: further_from_zero(right(*x))})

    monkeypatch.setattr(lean, "arithmetic", off_by_one)
    assert not torch.equal(rows_of(model, "lean"), rows_of(model, "transformers"))
