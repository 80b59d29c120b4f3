"""EAGLE-3 heads of random weights, in the format of the speculators library."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig


def write_head(folder: Path, target: PretrainedConfig, name: str, proposes: int, num_speculative_tokens: int) -> Path:
    """Write a head whose own vocabulary is one token, so that it proposes this one whatever its weights are.

    Args:
        folder: of the head.
        target: configuration of the Llama model that it reads hidden states of.
        name: path of that model.
        proposes: the token.
        num_speculative_tokens: proposals per step that the head's configuration asks for.
    """
    generator = torch.Generator().manual_seed(0)
    width, inner, vocabulary = target.hidden_size, target.intermediate_size, target.vocab_size
    heads, kv_heads, size = target.num_attention_heads, target.num_key_value_heads, target.head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.05

    tensors = {
        "fc.weight": random(width, 3 * width),
        "embed_tokens.weight": random(vocabulary, width),
        "layers.0.input_layernorm.weight": torch.ones(width),
        "layers.0.hidden_norm.weight": torch.ones(width),
        "layers.0.post_attention_layernorm.weight": torch.ones(width),
        "layers.0.self_attn.q_proj.weight": random(heads * size, 2 * width),
        "layers.0.self_attn.k_proj.weight": random(kv_heads * size, 2 * width),
        "layers.0.self_attn.v_proj.weight": random(kv_heads * size, 2 * width),
        "layers.0.self_attn.o_proj.weight": random(width, heads * size),
        "layers.0.mlp.gate_proj.weight": random(inner, width),
        "layers.0.mlp.up_proj.weight": random(inner, width),
        "layers.0.mlp.down_proj.weight": random(width, inner),
        "norm.weight": torch.ones(width),
        "lm_head.weight": random(1, width),
        "d2t": torch.tensor([proposes]),
        "t2d": torch.arange(vocabulary) == proposes,
    }
    layer = target.to_dict() | {"num_hidden_layers": 1, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": 1,
        "norm_before_residual": False,
        "target_hidden_size": width,
        # of a model with few layers, vLLM's usual three are not all different
        "eagle_aux_hidden_state_layer_ids": [1, target.num_hidden_layers // 2, target.num_hidden_layers - 1],
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_speculative_tokens}],
            "verifier": {"name_or_path": name, "architectures": ["LlamaForCausalLM"]},
        },
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
