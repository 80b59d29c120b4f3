"""Models of random weights with the shapes of real ones."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 151_936


def qwen3(dtype: torch.dtype, layers: int = 28) -> PreTrainedModel:
    """Return a model of the shape of Qwen3-0.6B, or with other layers."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=3072, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960,
        tie_word_embeddings=True,
    )  # fmt: skip
    return _random(Qwen3ForCausalLM, config, dtype)


def narrow_draft(dtype: torch.dtype) -> PreTrainedModel:
    """Return a draft of two narrow layers with the same vocabulary."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=40_960, tie_word_embeddings=True,
    )  # fmt: skip
    return _random(LlamaForCausalLM, config, dtype)


def _random(kind, config, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return kind(config).eval()
    finally:
        torch.set_default_dtype(before)
