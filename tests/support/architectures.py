"""Tiny random models of most architectures of transformers' causal language models, built without a network."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 50
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dff", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 24),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "head_dim": 8,
    "rotary_dim": 4,
    "is_decoder": True,
}
_NONE = ("bos_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id")
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
}
_GROUPS = {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}

_OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": _LATENT | _GROUPS | {"first_k_dense_replace": 1},
    "deepseek_v3": _LATENT | _GROUPS | {"first_k_dense_replace": 1},
    "glm4_moe_lite": _LATENT | _GROUPS,
    "minicpm3": _LATENT,
    "youtu": _LATENT,
    "dots1": _GROUPS,
    "falcon": {"head_dim": None, "alibi": False},
    "xlnet": {"max_position_embeddings": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "mamba2": {"num_heads": 8, "n_groups": 1, "state_size": 8},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"]},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64},
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "cwm": {"bos_token_id": 0},
    "modernbert-decoder": {"bos_token_id": 0, "pad_token_id": 0},
    "reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (8, 16)},
}
"""What an architecture needs besides the sizes; None takes a size away."""


def tiny_architecture(name: str, **own: Any) -> PreTrainedModel:
    """Return a random float32 model of a model type whose weights, biases and norms all matter."""
    kind = CONFIG_MAPPING[name]
    default, given = kind(), _SIZES | dict.fromkeys(_NONE) | {"pad_token_id": None} | _OWN.get(name, {}) | own
    sizes = {key: value for key, value in given.items() if (key in _SIZES or key in _NONE) and hasattr(default, key)}
    removed = {key for key, value in _OWN.get(name, {}).items() if value is None}
    config = kind(**{k: v for k, v in (given | sizes).items() if k not in removed and hasattr(default, k)})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    for setting in _NONE:
        setattr(model.generation_config, setting, None)
    return model


@torch.no_grad()
def logits_of_all(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Return the model's logits after each token, with positions from 0 as `generate` gives them."""
    positions = {}
    if "position_ids" in inspect.signature(model.forward).parameters:
        positions["position_ids"] = torch.arange(len(ids))[None]
    return model(input_ids=torch.tensor([ids]), use_cache=False, **positions).logits[0]


@torch.no_grad()
def greedy_answer(model: PreTrainedModel, ids: list[int], count: int) -> list[int]:
    """Return what the model's own `generate` answers."""
    output = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=count, pad_token_id=0)
    return output[0, len(ids) :].tolist()
