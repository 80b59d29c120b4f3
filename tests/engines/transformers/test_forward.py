"""The pass through a model's own forward: what it is given, and which models it refuses."""

import pytest
import torch
from support.architectures import greedy_answer, logits_of_all, tiny_architecture
from support.tables import all_of
from support.tiny_architectures import random_tokens
from support.tiny_models import tiny_llama
from transformers import GPT2Config, GPT2LMHeadModel

from cactus_decoding.engines.transformers.cached_model import CachedModel

SMALL = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)


@all_of("name", ["roberta", "camembert", "gpt2", "llama"])
def test_positions_are_those_that_generate_gives(name):
    model, ids = tiny_architecture(name), random_tokens(12)
    cached, answer = CachedModel(model), []
    while len(answer) < 6:
        answer.append(int(cached.append((ids + answer)[cached.length :], rows=1).argmax()))
    assert answer == greedy_answer(model, ids, 6)
    torch.testing.assert_close(CachedModel(model).append(ids, rows=12), logits_of_all(model, ids), rtol=0, atol=2e-5)


def test_who_counts_positions_itself_is_given_none():
    class Counting(GPT2LMHeadModel):
        def _prepare_position_ids_for_generation(self, *_):
            raise AssertionError

        def forward(self, *given, position_ids=None, **named):
            assert position_ids is None
            return super().forward(*given, **named)

    assert CachedModel(Counting(SMALL).eval()).append([1, 2, 3], rows=3).shape == (3, 50)


def test_encoders_are_refused_before_any_work():
    model = tiny_architecture("bert", is_decoder=False)
    with pytest.raises(ValueError, match=r"BertLMHeadModel is an encoder, .* load it with is_decoder=True"):
        CachedModel(model)


@all_of("name", ["llama", "gpt2"])
def test_gradient_checkpointing_fills_no_cache_in_training_mode(name):
    model = tiny_architecture(name).train()
    CachedModel(model)
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")  # the first is the newer one
    getattr(model, next(name for name in names if hasattr(model, name)))()
    with pytest.raises(ValueError, match=f"{type(model).__name__} is in training mode with gradient checkpointing"):
        CachedModel(model)
    assert CachedModel(model.eval()).append([1, 2, 3], rows=1).shape == (1, 50)


def test_a_cache_that_is_not_filled_is_noticed():
    class Forgetful(GPT2LMHeadModel):
        def forward(self, *given, past_key_values=None, **named):
            return super().forward(*given, **named)

    with pytest.raises(ValueError, match="Forgetful cached 0 tokens where 3 were read"):
        CachedModel(Forgetful(SMALL).eval()).append([1, 2, 3], rows=1)


def test_extra_inputs_call_for_transformers_pass():
    cached = CachedModel(tiny_llama(0))
    cached.use_extra_inputs({"output_hidden_states": True})
    cached.append([1, 2, 3], rows=1)
    assert len(cached.outputs.hidden_states) == 3
    cached.use_extra_inputs({"output_hidden_states": True})  # the same again is no change
    with pytest.raises(ValueError, match="while the cache is empty, but it holds 3 tokens"):
        cached.use_extra_inputs({})
    cached.reset()
    cached.append([1, 2, 3], rows=1)
    assert cached.outputs is None
