"""Rows in place are those of transformers' own cache, bit for bit, whatever is appended, forgotten, moved or saved."""

import copy
import random
from functools import partial

import pytest
import torch
from support.architectures import tiny_architecture
from support.tiny_architectures import perturbed, random_tokens
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, LlamaConfig

from cactus_decoding.core.models.base import num_bytes
from cactus_decoding.engines.transformers import compatibility, row_cache
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.engines.transformers.row_cache import (
    ATTENTION,
    MAX_QUERIES,
    MIN_CAPACITY,
    RowLayer,
    attend,
    takes_attention,
    with_rows_in_place,
)

HEADS, WIDTH = 2, 4


class Copying:
    """The plain function that `RowLayer` equals: a layer of `DynamicCache`, of which parts are copied."""

    def __init__(self) -> None:
        self.layer = DynamicCache().layer_class_to_replicate()

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer.update(keys, values)

    def keep(self, indices: list[int]) -> None:
        self.layer.keys, self.layer.values = self.layer.keys[:, :, indices], self.layer.values[:, :, indices]


def states(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    keys, values = torch.randn(2, 1, HEADS, count, WIDTH, generator=generator)
    return keys, values


def drive(layer: RowLayer, seed: int, steps: int) -> None:
    """Do the same with both, at random: appends, rollbacks, paths of trees, copies to go back to."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    plain, length, saved = Copying(), 0, []
    for _ in range(steps):
        action = chance.choice(["append", "append", "append", "crop", "path", "save", "restore"])
        if action == "append" or not length:
            count = chance.choice([1, 1, 3, 8, 40, 300])
            new = states(count, generator)
            ours, theirs = layer.update(*new), plain.update(*new)
            assert all(torch.equal(mine, their) for mine, their in zip(ours, theirs, strict=True))
            length += count
        elif action == "crop":
            count = chance.randint(0, min(length - 1, 9))
            chance.choice([layer.cut, partial(compatibility.remove_last, layer)])(count)
            length -= count
            plain.keep([*range(length)])
        elif action == "path":
            prefix = max(length - chance.randint(1, 9), 0)
            path = sorted(chance.sample(range(prefix, length), chance.randint(1, min(4, length - prefix))))
            layer.keep(prefix, torch.tensor(path))
            plain.keep([*range(prefix), *path])
            length = prefix + len(path)
        elif action == "save":
            saved.append((copy.deepcopy(layer), copy.deepcopy(plain), length))
        elif saved:
            layer, plain, length = saved.pop()
        assert layer.get_seq_length() == length
        assert torch.equal(layer.keys, plain.layer.keys)
        assert torch.equal(layer.values, plain.layer.values)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_those_of_transformers_own_cache(seed):
    drive(RowLayer(), seed, 60)


def test_a_store_that_keeps_the_old_rows_shows():
    """The wrong variant: what is written lands one token too early."""

    class Early(RowLayer):
        def update(self, key_states, value_states, *args, **named):
            keys, values = super().update(key_states, value_states, *args, **named)
            if keys.shape[-2] > key_states.shape[-2]:
                keys[:, :, -key_states.shape[-2] - 1] = key_states[:, :, 0]
            return keys, values

    with pytest.raises(AssertionError):
        drive(Early(), 0, 60)


def test_appending_and_forgetting_copy_nothing_while_there_is_room():
    layer, generator = RowLayer(), torch.Generator().manual_seed(0)
    layer.update(*states(10, generator))
    place = layer.keys.data_ptr()
    for _ in range(50):
        layer.update(*states(4, generator))
        compatibility.remove_last(layer, 3)
        assert layer.keys.data_ptr() == place
    assert layer.keys.shape[-2] == 60
    layer.update(*states(MIN_CAPACITY, generator))
    assert layer.keys.data_ptr() != place
    assert layer._stores[0].shape[-2] == 2 * MIN_CAPACITY


def test_a_copy_has_the_used_rows_alone_and_is_independent():
    layer, generator = RowLayer(), torch.Generator().manual_seed(0)
    layer.update(*states(10, generator))
    copied, before = copy.deepcopy(layer), layer.keys.clone()
    assert num_bytes(copied) == 2 * HEADS * 10 * WIDTH * 4
    copied.update(*states(3, generator))
    compatibility.remove_last(layer, 10)
    layer.update(*states(10, generator))
    assert torch.equal(copied.keys[:, :, :10], before)


def test_texts_of_a_batch_can_be_selected_and_repeated():
    layer = RowLayer()
    new = torch.arange(24.0).view(3, 1, 2, 4)
    layer.update(new, new)
    layer.batch_select_indices(torch.tensor([2, 0]))
    keys, _ = layer.update(new[:2], new[:2])
    assert torch.equal(keys, torch.cat([new[[2, 0]], new[:2]], 2))
    layer.batch_repeat_interleave(2)
    assert torch.equal(layer.keys[1], keys[0])


def test_layers_of_other_kinds_stay_transformers_own():
    kinds = {}
    for name in ("llama", "gemma3_text", "mistral"):
        config = tiny_architecture(name).config
        own = compatibility.empty_cache(config, record_past=True).layers
        ours = with_rows_in_place(compatibility.empty_cache(config, record_past=True)).layers
        kinds[name] = [type(layer) for layer in ours]
        for before, now in zip(own, ours, strict=True):
            assert type(now) is (RowLayer if type(before) is compatibility.DynamicLayer else type(before))
    assert set(kinds["llama"]) == {RowLayer}
    assert RowLayer not in kinds["mistral"]


# --- with a model ----------------------------------------------------------------------------------------------------


def read(model, monkeypatch, in_place: bool) -> list[Tensor]:
    """Rows of appends, rollbacks, a tree, a path, a copy; with transformers' own layers, unless in place."""
    if not in_place:
        monkeypatch.setattr(row_cache, "RowLayer", RowLayer)
        monkeypatch.setattr(RowLayer, "update", compatibility.DynamicLayer.update)
    forward, ids = GeneralForward(model, {}), torch.tensor(random_tokens(40))
    rows = [forward.append(ids[:12], 0, 12), forward.append(ids[12:19], 12, 7)]
    start = forward.keep(19, 14, [])
    positions = torch.tensor([14, 15, 15, 16])
    mask = torch.ones(4, 18, dtype=torch.bool)
    mask[:, 14:] = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]).bool()
    rows.append(forward.append(ids[20:24], start, 4, positions, mask))
    kept = forward.keep(18, 14, [14, 16, 17])
    saved = forward.save(kept)
    rows.append(forward.append(ids[24:27], kept, 3))
    another = GeneralForward(model, {})
    another.restore(saved)
    rows.append(another.append(ids[24:27], kept, 3))
    assert torch.equal(rows[-1], rows[-2])
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_s_rows_are_the_same_bit_for_bit(dtype, monkeypatch):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    model = perturbed(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2), dtype=dtype)
    with torch.inference_mode():
        ours = read(model, monkeypatch, in_place=True)
        theirs = read(model, monkeypatch, in_place=False)
    assert all(torch.equal(mine, their) for mine, their in zip(ours, theirs, strict=True))


SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def grouped(**own) -> torch.nn.Module:
    return perturbed(LlamaConfig(**SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2} | own))


class Module(torch.nn.Module):
    num_key_value_groups, is_causal = 3, True


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
        own, _ = compatibility.SDPA(Module(), query, key, value, each, scaling=0.3)
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
    own, _ = compatibility.SDPA(Module(), query, key, value, mask, scaling=0.3)
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
    own = compatibility.SDPA
    replaced = []

    def sdpa(*args, **named):
        replaced.append(1)
        return own(*args, **named)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", sdpa)
    CachedModel(grouped()).append([1, 2, 3], 1)
    assert (seen, len(replaced)) == ([], 2)
