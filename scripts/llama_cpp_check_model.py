"""Writes the model that a newer llama-cpp-python is checked with: random weights and 32 tokens, 10 KB.

.venv/bin/python scripts/llama_cpp_check_model.py src/cactus_decoding/engines/llama_cpp/models/check.gguf
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH, TOKENS = 16, ["<unk>", "<s>", "</s>", "▁", "ab", *"abcdefghijklmnopqrstuvwxyz", "▁a"]
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // 2, WIDTH),
    "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (WIDTH, WIDTH),
    "ffn_up": (WIDTH, WIDTH),
    "ffn_down": (WIDTH, WIDTH),
}


def write(path: Path) -> None:
    """Write a Llama of one layer, whose two query heads share a key."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(len(each) == 1) for each in TOKENS])
    special = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    writer.add_token_types(special + [TokenType.NORMAL] * (len(TOKENS) - len(special)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    numbers = np.random.default_rng(0)
    weights = {"token_embd": (len(TOKENS), WIDTH)} | {f"blk.0.{name}": shape for name, shape in SHAPES.items()}
    for name, shape in weights.items():
        # whole numbers of eighths are the same with every release of numpy's normal numbers
        writer.add_tensor(f"{name}.weight", numbers.integers(-16, 17, shape).astype(np.float32) / 8)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    from results import parse  # tests import this file from elsewhere

    write(parse(__doc__, path=Path).path)
