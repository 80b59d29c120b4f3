"""The bundled models as GGUF files, for llama.cpp.

    python scripts/bundled_gguf.py build/gguf                       target, worded and draft, in each type: seconds
    python scripts/bundled_gguf.py build/gguf --type q8_0 target    one of them

Each becomes FOLDER/NAME-TYPE.gguf: float32, float16, or q8_0, which stores 32 weights in 34 bytes. Models of other
architectures, and other types, are llama.cpp's own tools' (convert_hf_to_gguf.py, llama-quantize).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from cactus_decoding import zoo

TYPES = {
    "float32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "float16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
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


def write_gguf(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase | None, path: Path, kind: str) -> None:
    """Write a Llama with byte-level BPE tokens, or with bare numbers as tokens where there is no tokenizer."""
    stored, file_type = TYPES[kind]
    writer = GGUFWriter(path, "llama")
    writer.add_file_type(file_type)
    _add_shape(writer, model)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        _add_tokens(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue  # llama.cpp then takes the embedding
        values = _values(name, tensor, model.config)
        of = stored if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(_name(name), quants.quantize(values, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: GGUFWriter, model: LlamaForCausalLM) -> None:
    config = model.config
    writer.add_name(Path(config.name_or_path).name or "random")
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


def _add_tokens(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    control = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    # llama.cpp knows no expression like the bundled one. This one keeps digits that follow each other together, but no
    # merge joins them. Only of several spaces in a row it makes other tokens.
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if i in control else TokenType.NORMAL for i in range(len(tokens))])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(True)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _values(name: str, tensor: torch.Tensor, config: object) -> np.ndarray:
    """Return a weight as llama.cpp wants it: of each head, the pairs that are rotated together stand side by side."""
    values = tensor.float().numpy()
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    count = next((getattr(config, of) for part, of in heads.items() if part in name), None)
    if count is None:
        return values
    return np.ascontiguousarray(values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape))


def _name(name: str) -> str:
    """Return a weight's name in GGUF, such as ``blk.0.attn_q.weight``."""
    prefix, rest = "", name.removesuffix(".weight")
    if rest.startswith("model.layers."):
        layer, rest = rest.removeprefix("model.layers.").split(".", 1)
        prefix = f"blk.{layer}."
    return f"{prefix}{_TENSORS[rest]}.weight"


def write_bundled(name: str, folder: Path, kind: str) -> Path:
    """Write a bundled model; return where it is."""
    source, path = zoo.path(name), folder / f"{name}-{kind}.gguf"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(model, AutoTokenizer.from_pretrained(source), path, kind)
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=["target", "worded", "draft"])
    parser.add_argument("--type", choices=list(TYPES), action="append", help="may be given several times")
    given = parser.parse_args(arguments)
    for name in given.names:
        for kind in given.type or TYPES:
            print(write_bundled(name, given.folder, kind))


if __name__ == "__main__":
    main()
