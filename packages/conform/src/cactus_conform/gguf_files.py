"""The tiny models as GGUF files, for llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cactus_conform.engine import END, LETTERS, needing
from cactus_conform.models import CONFIG, norms, weights_of


def write_gguf(name: str, path: Path) -> None:
    """Write a tiny model in float32. Raises `ValueError` where the package ``gguf`` is not installed."""
    with needing("gguf"):
        from gguf import GGUFWriter, TokenType

    writer = GGUFWriter(path, "llama")
    add_shape(writer, "tiny", CONFIG)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["</s>", *LETTERS])
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * len(LETTERS))
    writer.add_token_merges(["z z"])  # there must be one; this never applies
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(END)
    writer.add_add_bos_token(False)
    for of, weight in (weights_of(name) | norms()).items():
        writer.add_tensor(tensor_name(of, CONFIG), tensor_values(of, weight, CONFIG))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: Any, name: str, config: Mapping[str, Any]) -> None:
    """Add what llama.cpp must know of a Llama; ``config`` is that of transformers."""
    writer.add_name(name)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def tensor_name(name: str, config: Mapping[str, Any]) -> str:
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    return str(names.get_name(name, try_suffixes=(".weight",)))


def tensor_values(name: str, values: NDArray[np.float32], config: Mapping[str, Any]) -> NDArray[np.float32]:
    """Reorder a weight for llama.cpp: of each head, the pairs that are rotated together stand side by side."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    count = next((config[of] for part, of in heads.items() if part in name), None)
    if count is None:
        return values
    return np.ascontiguousarray(values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape))
