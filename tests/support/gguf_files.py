"""GGUF files of the bundled models and of tiny random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType
from transformers import LlamaForCausalLM

from cactus_decoding import Pair
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.server.completion import Completion, prompts_of, read_completion
from scripts.bundled_gguf import write_gguf

PRECISE = "cache=float32"
"""Keys, values and attention in float32: what a row then differs by from float64 is in its sixth digit."""


def opened(path: Path, settings: str = PRECISE, **given: bool) -> LlamaCppModel:
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


def completions(pair: Pair, **usual: Any) -> Callable[..., Completion]:
    """Return a function from a request's fields to what a server with some settings answers."""

    def completion(on_step: Any = lambda *_: None, **body: Any) -> Completion:
        asked = read_completion(body, usual, chat="messages" in body)
        return Completion(pair, asked, prompts_of(pair, asked), "m", on_step)

    return completion
