"""Tiny random models with a recurrent state as GGUF files: alone, beside attention, and inside its layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

WIDTH, HIDDEN, KERNEL, STATE, HEADS = 16, 24, 4, 8, 2
ARCHITECTURES = ("mamba", "falcon-h1", "lfm2", "qwen35")
"""State alone; state and attention in one layer; and by layers in turn, which llama.cpp itself can roll back."""


def write_hybrid(path: Path, architecture: str, seed: int, vocabulary: int = 8, positions: int = 64) -> Path:
    """Write a model of two layers, the second with attention if any has; its rows differ clearly by token."""
    writer, drawn = GGUFWriter(path, architecture), np.random.default_rng(seed)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(positions)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(0 if architecture == "mamba" else HIDDEN)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv([0, 1] if architecture == "lfm2" else 1)
    writer.add_key_length(WIDTH // HEADS)
    writer.add_value_length(WIDTH // HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    if architecture == "lfm2":
        writer.add_shortconv_l_cache(KERNEL)
    else:
        writer.add_ssm_conv_kernel(KERNEL)
        writer.add_ssm_inner_size(2 * WIDTH if architecture == "mamba" else HEADS * STATE)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_time_step_rank(HEADS)
        writer.add_ssm_group_count(1)
    if architecture == "qwen35":
        writer.add_full_attention_interval(2)
        writer.add_rope_dimension_sections([2, 1, 1, 0])
    for name, shape in _shapes(architecture, vocabulary).items():
        values = drawn.standard_normal(shape[::-1]) / np.sqrt(shape[0])
        if "norm" in name:
            values = np.ones(shape)
        elif name.endswith("ssm_a"):
            values = -np.exp(values)
        elif name == "output.weight":
            values *= 2
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(architecture: str, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights as llama.cpp writes them, the fastest dimension first."""
    norm = "token_embd_norm" if architecture == "lfm2" else "output_norm"
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (WIDTH, vocabulary),
        "output.weight": (WIDTH, vocabulary),
        f"{norm}.weight": (WIDTH,),
    }
    for layer in range(2):
        parts = {"attn_norm.weight": (WIDTH,)}
        if architecture == "mamba":
            parts |= _mamba()
        else:
            after = {"qwen35": "post_attention_norm"}.get(architecture, "ffn_norm")
            parts |= {f"{after}.weight" if architecture != "falcon-h1" else after: (WIDTH,)}
            parts |= {f"ffn_{name}.weight": (WIDTH, HIDDEN) for name in ("gate", "up")}
            parts |= {"ffn_down.weight": (HIDDEN, WIDTH)}
            if layer or architecture == "falcon-h1":
                parts |= _attention(architecture)
            if not layer or architecture == "falcon-h1":
                parts |= {"falcon-h1": _mamba_2, "lfm2": _convolution, "qwen35": _delta_net}[architecture]()
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def _attention(architecture: str) -> dict[str, tuple[int, ...]]:
    head = WIDTH // HEADS
    queries = 2 * WIDTH if architecture == "qwen35" else WIDTH  # those with their gates
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (WIDTH, queries),
        "attn_k.weight": (WIDTH, head),
        "attn_v.weight": (WIDTH, head),
        "attn_output.weight": (WIDTH, WIDTH),
    }
    if architecture != "falcon-h1":
        shapes |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    return shapes


def _mamba() -> dict[str, tuple[int, ...]]:
    inner = 2 * WIDTH
    return {
        "ssm_in.weight": (WIDTH, 2 * inner),
        "ssm_conv1d.weight": (KERNEL, inner),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (inner, HEADS + 2 * STATE),
        "ssm_dt.weight": (HEADS, inner),
        "ssm_dt.bias": (inner,),
        "ssm_a": (STATE, inner),
        "ssm_d": (inner,),
        "ssm_out.weight": (inner, WIDTH),
    }


def _mamba_2() -> dict[str, tuple[int, ...]]:
    inner = HEADS * STATE
    read = inner + 2 * STATE
    return {
        "ssm_in.weight": (WIDTH, inner + read + HEADS),
        "ssm_conv1d.weight": (KERNEL, read),
        "ssm_conv1d.bias": (read,),
        "ssm_dt.bias": (HEADS,),
        "ssm_a": (1, HEADS),
        "ssm_d": (1, HEADS),
        "ssm_out.weight": (inner, WIDTH),
    }


def _convolution() -> dict[str, tuple[int, ...]]:
    return {
        "shortconv.conv.weight": (KERNEL, WIDTH),
        "shortconv.in_proj.weight": (WIDTH, 3 * WIDTH),
        "shortconv.out_proj.weight": (WIDTH, WIDTH),
    }


def _delta_net() -> dict[str, tuple[int, ...]]:
    values, keys = HEADS * STATE, STATE
    return {
        "attn_qkv.weight": (WIDTH, 2 * keys + values),
        "attn_gate.weight": (WIDTH, values),
        "ssm_conv1d.weight": (KERNEL, 2 * keys + values),
        "ssm_dt.bias": (HEADS,),
        "ssm_a": (HEADS,),
        "ssm_beta.weight": (WIDTH, HEADS),
        "ssm_alpha.weight": (WIDTH, HEADS),
        "ssm_norm.weight": (STATE,),
        "ssm_out.weight": (values, WIDTH),
    }
