"""Llamas as GGUF files, for llama.cpp: what every such file says of its shape and weights, and whole tiny ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cactus_decoding.core.extras import needing

_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: Any, tokens: Sequence[str], path: Path) -> None:
    """Write a tiny Llama in float32.

    Args:
        model: of transformers.
        tokens: the first one ends outputs, the others are letters.
        path: of the file.

    Raises:
        ValueError: where the package ``gguf`` is not installed.
    """
    with needing("GGUF files are written by the package gguf", "dev"):
        from gguf import GGUFWriter, TokenType

    writer = GGUFWriter(path, "llama")
    add_shape(writer, "tiny", model.config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["z z"])  # there must be one; this never applies
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(tensor_name(name), tensor_values(name, tensor.float().numpy(), model.config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: Any, name: str, config: Any) -> None:
    """Tell a ``GGUFWriter`` the name of a Llama and the shape that its configuration says."""
    writer.add_name(name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def tensor_name(name: str) -> str:
    """Return a weight's name in GGUF.

    Example:
        >>> tensor_name("model.layers.0.self_attn.q_proj.weight")
        'blk.0.attn_q.weight'
    """
    prefix, rest = "", name.removesuffix(".weight")
    if rest.startswith("model.layers."):
        layer, rest = rest.removeprefix("model.layers.").split(".", 1)
        prefix = f"blk.{layer}."
    return f"{prefix}{_TENSORS[rest]}.weight"


def tensor_values(name: str, values: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """Return a weight as llama.cpp wants it: of each head, the pairs that are rotated together stand side by side."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    count = next((getattr(config, of) for part, of in heads.items() if part in name), None)
    if count is None:
        return values
    return np.ascontiguousarray(values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape))
