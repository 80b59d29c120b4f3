"""A trained Qwen2 as GGUF has the rows that transformers computes, but for Q8_0."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter, TokenType
from support.gguf_files import opened
from transformers import Qwen2Config, Qwen2ForCausalLM

from studies.training.as_gguf import name_of, write

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def header(path: Path) -> Path:
    """Write what says how a Qwen2 of three layers is shaped, without its weights."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(3)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"<{number}>" for number in range(64)])
    writer.add_token_types([TokenType.USER_DEFINED] * 64)
    writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_rows_are_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(**SIZES, **HEADS, num_hidden_layers=2, tie_word_embeddings=True, rope_theta=10_000.0)
    model = Qwen2ForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "draft")
    write(tmp_path / "draft", header(tmp_path / "whole.gguf"), tmp_path / "draft.gguf")
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    ours = opened(tmp_path / "draft.gguf").append(ids, rows=len(ids)).log_softmax(-1)
    assert (ours - theirs).abs().max() < 0.3
    assert (ours[1:] - theirs[:-1]).abs().max() > 1  # rows of other positions are others


def test_what_a_qwen2_does_not_have_is_refused() -> None:
    assert name_of("model.layers.1.self_attn.q_proj.bias") == "blk.1.attn_q.bias"
    with pytest.raises(ValueError, match="no tensor of a Qwen2"):
        name_of("model.layers.1.self_attn.q_norm.weight")
