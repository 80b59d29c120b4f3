"""Random language models small enough to enumerate, in float64 so that block and single steps agree."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM


def tiny_llama(seed: int, vocabulary: int = 8, *, positions: int = 64, sharpness: float = 6.0) -> LlamaForCausalLM:
    """Return a two-layer model whose next-token rows differ clearly from token to token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # the default initialisation gives nearly uniform rows
        model.lm_head.weight.mul_(sharpness)
    return model


def tiny_mixture(seed: int, vocabulary: int = 64) -> MixtralForCausalLM:
    """Return a three-layer mixture of 16 experts whose tokens ask for different ones, two each."""
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=16, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, num_local_experts=16, num_experts_per_tok=2,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8.0)  # the default initialisation makes all experts alike
    return model
