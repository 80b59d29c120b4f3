"""A trained draft as GGUF, where llama.cpp's converter is not at hand.

    python -m studies.training.as_gguf FOLDER OF.gguf FILE

FOLDER is what `cactus train-draft` made of a Qwen2's first layers, OF.gguf the file that the Qwen2 came from, whose
tokens and settings are kept. Matrices are quantised to Q8_0; the output layer is the embeddings, as it was in training.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import load_file

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.down_proj": "ffn_down",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
}  # fmt: skip
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def name_of(name: str) -> str:
    """Return a tensor's name in GGUF.

    >>> name_of("model.layers.1.self_attn.q_proj.bias")
    'blk.1.attn_q.bias'
    """
    if name in WHOLE:
        return WHOLE[name]
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if found is None or found[2] not in NAMES:
        raise ValueError(f"{name} is no tensor of a Qwen2 whose embeddings are its output layer")
    return f"blk.{found[1]}.{NAMES[found[2]]}.{found[3]}"


def write(folder: Path, source: Path, file: Path) -> None:
    """Write the file."""
    weights = load_file(folder / "model.safetensors")
    layers = len({name.split(".")[2] for name in weights if name.startswith("model.layers.")})
    tensors = []
    for name, value in weights.items():
        if name == "lm_head.weight":  # the embeddings
            continue
        kind = GGMLQuantizationType.Q8_0 if value.dim() == 2 else GGMLQuantizationType.F32
        tensors.append((name_of(name), quantize(value.float().numpy(), kind), kind))
    write_like(GGUFReader(source), file, {"qwen2.block_count": layers}, tensors)


def write_like(reader: Any, path: Path, changed: Mapping[str, Any], tensors: Iterable[tuple[str, Any, Any]]) -> None:
    """Write a GGUF file with the fields that a ``GGUFReader`` has read, but for some, and with tensors of its own.

    A tensor is a name, what stands in the file, and its type there.
    """
    writer: Any = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, changed[key] if key in changed else field.contents(), *kind)
    for name, data, type_of_data in tensors:
        writer.add_tensor(name, data, raw_dtype=type_of_data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
