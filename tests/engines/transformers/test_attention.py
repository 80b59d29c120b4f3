"""Attention that repeats no key gives what transformers' own gives, and is used for a while only."""

from __future__ import annotations

import pytest
import torch
from support.tiny_architectures import perturbed, random_tokens
from transformers import AttentionInterface, LlamaConfig

from cactus_decoding.engines.transformers import compatibility
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.row_cache import ATTENTION, MAX_QUERIES, attend, takes_attention

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def grouped(**own) -> torch.nn.Module:
    return perturbed(LlamaConfig(**SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2} | own))


class Module(torch.nn.Module):
    num_key_value_groups = 3
    is_causal = True


def inputs(count: int, dtype: torch.dtype, cached: int = 9):
    generator = torch.Generator().manual_seed(count)
    query = torch.randn(1, 6, count, 8, generator=generator).to(dtype)
    key, value = torch.randn(2, 1, 2, cached + count, 8, generator=generator).to(dtype)
    mask = torch.rand(1, 1, count, cached + count, generator=generator) < 0.5
    mask[..., 0] = True
    return query, key, value, mask


@pytest.mark.parametrize("count", [1, 2, 7, MAX_QUERIES, MAX_QUERIES + 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_transformers_own_up_to_rounding(count, dtype):
    query, key, value, mask = inputs(count, dtype)
    bias = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
    masks = [mask, bias, mask.expand(1, 6, -1, -1), *([None] if count == 1 else [])]
    for each in masks:
        own, _ = compatibility.sdpa()(Module(), query, key, value, each, scaling=0.3)
        ours, weights = attend(Module(), query, key, value, each, scaling=0.3)
        assert weights is None
        assert ours.shape == own.shape
        assert ours.is_contiguous()
        if dtype == torch.bfloat16:
            assert torch.equal(ours, own), "it must round as transformers does"
        else:
            torch.testing.assert_close(ours, own, rtol=0, atol=10 * torch.finfo(dtype).eps)


def test_a_mask_that_is_repeated_in_another_order_shows(monkeypatch):
    """The wrong variant: rows of the mask go to the wrong queries."""
    query, key, value, mask = inputs(7, torch.float64)
    own, _ = compatibility.sdpa()(Module(), query, key, value, mask, scaling=0.3)
    monkeypatch.setattr(torch.Tensor, "repeat", lambda self, a, b, group, d: self.repeat_interleave(group, 2))
    wrong, _ = attend(Module(), query, key, value, mask, scaling=0.3)
    assert (wrong - own).abs().max() > 0.1


def calls(monkeypatch) -> list[int]:
    seen: list[int] = []

    def noting(module, query, key, value, attention_mask, **named):
        seen.append(query.shape[2])
        return attend(module, query, key, value, attention_mask, **named)

    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION, noting)
    return seen


def test_a_model_reads_by_it_and_its_configuration_stays_as_it_was(monkeypatch):
    model, seen, ids = grouped(), calls(monkeypatch), random_tokens(20)
    expected = model(torch.tensor([ids])).logits[0]
    cached = CachedModel(model)
    rows = [cached.append(ids[:10], 10), cached.append(ids[10:14], 4), cached.append(ids[14:15], 1)]
    assert seen == [10, 10, 4, 4, 1, 1]
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(torch.cat(rows), expected[:15], rtol=0, atol=2e-5)


def test_the_configuration_is_put_back_after_an_error(monkeypatch):
    model = grouped()
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda self, x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CachedModel(model).append([1, 2, 3], 1)
    assert model.config._attn_implementation == "sdpa"


def test_other_attention_is_left_alone(monkeypatch):
    seen = calls(monkeypatch)
    CachedModel(grouped(attn_implementation="eager")).append([1, 2, 3], 1)
    assert not takes_attention(grouped(num_key_value_heads=4))
    own = compatibility.sdpa()
    replaced = []

    def sdpa(*args, **named):
        replaced.append(1)
        return own(*args, **named)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", sdpa)
    CachedModel(grouped()).append([1, 2, 3], 1)
    assert (seen, len(replaced)) == ([], 2)
