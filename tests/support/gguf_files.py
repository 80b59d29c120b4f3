"""GGUF files of the bundled models and of tiny random ones, mixtures of experts among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cactus_conform.gguf_files import add_shape, tensor_name, tensor_values
from gguf import GGUFWriter, TokenType
from transformers import LlamaForCausalLM, MixtralForCausalLM

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


def write_mixture(model: MixtralForCausalLM, path: Path) -> Path:
    """Write a mixture of experts in float32, with bare numbers as tokens."""
    config, writer = model.config.to_dict(), GGUFWriter(path, "llama")
    add_shape(writer, "mixture", config)
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_tokenizer_model("no_vocab")
    weights = model.state_dict()
    for name in [name for name in weights if "gate_up" in name]:  # one tensor in transformers, two in llama.cpp
        weights[name.replace("gate_up", "gate")], weights[name.replace("gate_up", "up")] = weights.pop(name).chunk(2, 1)
    for name, tensor in weights.items():
        values = tensor_values(name, tensor.contiguous().numpy(), config)
        writer.add_tensor(f"{tensor_name(name.removesuffix('.weight'), config)}.weight", values)
    return _written(writer, path)


def _written(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    return _written(writer, path)


def completions(pair: Pair, **usual: Any) -> Callable[..., Completion]:
    """Return a function from a request's fields to what a server with some settings answers."""

    def completion(on_step: Any = lambda *_: None, **body: Any) -> Completion:
        asked = read_completion(body, usual, chat="messages" in body, pair=pair)
        return Completion(pair, asked, prompts_of(pair, asked), "m", on_step)

    return completion
