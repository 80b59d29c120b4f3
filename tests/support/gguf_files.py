"""GGUF files of the bundled models and of tiny random ones, and of tiny pairs the exact law of two tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from gguf import GGUFWriter, TokenType
from torch import Tensor
from transformers import LlamaForCausalLM

from cactus_decoding import audit, parse_rule
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from scripts.bundled_gguf import write_gguf
from support.exact_enumeration import enumerate_tokens

TinyModel = LlamaForCausalLM | LlamaCppModel
PRECISE = "cache=float32"
"""Keys, values and attention in float32: what a row then differs by from float64 is in its sixth digit."""


def opened(path: Path, settings: str = PRECISE, **given: bool) -> LlamaCppModel:
    """Return a file's model with an empty cache."""
    file = parse_gguf(f"{path}:{settings}")
    assert file is not None
    return LlamaCppModel.load("target", file, **given)


def tiny_gguf(model: LlamaForCausalLM, folder: Path) -> LlamaCppModel:
    """Return a tiny model as llama.cpp reads it; its tokens are bare numbers."""
    path = folder / "tiny.gguf"
    write_gguf(model, None, path, "float32")
    return opened(path)


def header_only(path: Path, architecture: str, pieces: Sequence[str] = ()) -> Path:
    """Write a file that says what it is and has no weights; its tokens, if any, are SentencePiece's, likeliest last."""
    writer = GGUFWriter(path, architecture)
    for add in (writer.add_context_length, writer.add_embedding_length):
        add(16)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    writer.add_feed_forward_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    if pieces:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([float(i) for i in range(len(tokens))])
        writer.add_token_types(kinds + [TokenType.NORMAL] * len(pieces))
        writer.add_add_bos_token(True)
    else:
        writer.add_vocab_size(16)
        writer.add_tokenizer_model("no_vocab")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def law_of_two(rule: str, target: TinyModel, draft: TinyModel, prompt: list[int], limit: float | None = None) -> Tensor:
    """Return the law of the first two tokens that steps of several proposals emit, ``[vocabulary, vocabulary]``.

    Every drafted token has its turn, over the rows of transformers' own passes, or of a file that reads each text
    anew. A budget of ``limit`` nats is spent as its definition says: by what each visited position costs, and on none
    that it cannot afford.
    """

    def emitted(prefix: list[int], left: float) -> tuple[Tensor, float]:
        rows = [_row(model, prefix) for model in (target, draft)]
        cost = audit(parse_rule(rule), *rows).kl.clamp(min=0).item() if limit is not None else 0.0
        chosen, spent = (rule, cost) if cost <= left else ("lossless", 0.0)
        return enumerate_tokens(parse_rule(chosen), *rows)[0][0], left - spent

    start = limit if limit is not None else 0.0
    first, left = emitted(prompt, start)
    return first.unsqueeze(1) * torch.stack([emitted([*prompt, x], left)[0] for x in range(len(first))])


def _row(model: TinyModel, prefix: list[int]) -> Tensor:
    if isinstance(model, LlamaCppModel):
        model.reset()
        return model.append(prefix, 1).double().softmax(-1)
    with torch.no_grad():
        return model(torch.tensor([prefix])).logits[:, -1].softmax(-1)


def two_tokens(steps: Callable[[int], object], draws: int, vocabulary: int) -> Tensor:
    """Count the first two tokens of responses, given their steps for a seed, ``[vocabulary, vocabulary]``."""
    counts = torch.zeros(vocabulary, vocabulary)
    for seed in range(draws):
        tokens = list[int]()
        for step in steps(seed):  # type: ignore[attr-defined]
            tokens += step.token_ids
            if len(tokens) >= 2:
                break
        counts[tokens[0], tokens[1]] += 1
    return counts
