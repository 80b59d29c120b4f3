"""The tiny models as GGUF files, for llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cactus_decoding.arguments.extras import needing

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

    config, writer = model.config, GGUFWriter(path, "llama")
    writer.add_name("tiny")
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
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["z z"])  # there must be one; this never applies
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(_name(name), _values(name, tensor.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    """Return a weight's name in GGUF, such as ``blk.0.attn_q.weight``."""
    prefix, rest = "", name.removesuffix(".weight")
    if rest.startswith("model.layers."):
        layer, rest = rest.removeprefix("model.layers.").split(".", 1)
        prefix = f"blk.{layer}."
    return f"{prefix}{_TENSORS[rest]}.weight"


def _values(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a weight as llama.cpp wants it: of the one head, pairs that are rotated together stand side by side."""
    if "q_proj" in name or "k_proj" in name:
        return np.ascontiguousarray(values.reshape(2, -1, values.shape[1]).swapaxes(0, 1).reshape(values.shape))
    return values
