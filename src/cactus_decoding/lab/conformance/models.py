"""Tiny models, made here: a target and drafts that are good, bad, adversarial and deterministic."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from cactus_decoding.core.extras import needing
from cactus_decoding.core.mistakes import check_choice
from cactus_decoding.lab.conformance.asking import DRAFTS, END, LETTERS, VOCABULARY
from cactus_decoding.lab.conformance.processing import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POSITIONS = 64
_SHAPE = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
NAMES = ("target", *DRAFTS)
PROMPTS = ((1, 2, 3), (1, 2, 3, 4, 5, 1, 2), (9, 7, 9))  # the second begins with the first


class TinyModel:
    """A Llama of about ten thousand weights, in float64."""

    def __init__(self, name: str) -> None:
        self.model = tiny_llama(name)

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[Rows]:
        """Return the logits after every token of each sequence, ``[tokens, vocabulary]``."""
        longest = max(map(len, sequences))
        padded = torch.tensor([[*each, *[END] * (longest - len(each))] for each in sequences])
        with torch.no_grad():
            rows = self.model(padded, use_cache=False).logits.numpy()
        return [np.asarray(row[: len(each)]) for row, each in zip(rows, sequences, strict=True)]


def _config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=None,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )


@cache
def tiny_llama(name: str) -> Any:
    """Return a model in float64 whose weights fit float32, so that folders and files hold them exactly."""
    from transformers import LlamaForCausalLM

    check_choice("model", name, NAMES)
    model = LlamaForCausalLM(_config()).double().eval()
    with torch.no_grad():
        for weights in zip(
            model.parameters(), *(_weights(model, seed) for seed in (1, 2)), model.state_dict(), strict=True
        ):
            weights[0].copy_(_mixed(name, *weights[1:]).float())
    return model


def _weights(model: Any, seed: int) -> list[torch.Tensor]:
    """Return random weights, large enough that probabilities differ from place to place."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for parameter in model.parameters():
        if parameter.ndim == 1:
            made.append(torch.ones(parameter.shape, dtype=torch.float64))
        else:
            made.append(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 32**0.5 * 1.5)
    return made


def _mixed(name: str, target: torch.Tensor, other: torch.Tensor, of: str) -> torch.Tensor:
    """Return a draft's weights: near the target's, other ones, its opposite, or so sharp that it is one-hot."""
    head = of == "lm_head.weight"
    if name == "good":
        return 0.97 * target + 0.08 * other if target.ndim > 1 else target
    if name == "bad":
        return other
    if name == "adversarial":
        return -0.7 * target if head else target
    if name == "deterministic":
        return 200 * target if head else target
    return target


def tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer for which every letter is a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"</s>": END} | {letter: index + 1 for index, letter in enumerate(LETTERS)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")


def text_of(token_ids: Sequence[int]) -> str:
    """Return tokens as text; `END` has none."""
    return "".join(LETTERS[token - 1] for token in token_ids if token != END)


def gbnf(letters: str) -> str:
    return f"root ::= [{letters}]*"


def tokens_of(text: str) -> list[int]:
    if unknown := set(text) - set(LETTERS):
        raise ValueError(f"the tiny models write the letters {LETTERS}, but here is {min(unknown)!r}")
    return [LETTERS.index(letter) + 1 for letter in text]


def write_models(folder: Path, *, gguf: bool = False) -> Path:
    """Write every model into a folder of its name, and with ``gguf`` into ``NAME.gguf`` beside it; return the folder.

    ``folder`` is created if missing; ``gguf`` needs the package of this name. Raises `ValueError` where something else
    has the name of a model; nothing is written then.

    Example:
        >>> import tempfile
        >>> sorted(each.name for each in write_models(Path(tempfile.mkdtemp())).iterdir())
        ['adversarial', 'bad', 'deterministic', 'good', 'target']
    """
    import copy

    from transformers.utils import logging

    for name in NAMES:
        _check_ours(folder / name)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    for name in NAMES:
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        copy.deepcopy(tiny_llama(name)).float().save_pretrained(place)
        tokenizer().save_pretrained(place)
        plain = {"do_sample": True, "eos_token_id": END, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        (place / "generation_config.json").write_text(json.dumps(plain))
        if gguf:
            write_gguf(tiny_llama(name), ["</s>", *LETTERS], folder / f"{name}.gguf")
    if shown:
        logging.enable_progress_bar()
    return folder


def _check_ours(place: Path) -> None:
    try:
        config = json.loads((place / "config.json").read_text())
        ours = all(config[name] == value for name, value in _config().to_dict().items() if name in _SHAPE)
    except (OSError, ValueError, KeyError, TypeError):
        ours = not place.exists() and not place.with_suffix(".gguf").exists()
    if not ours:
        raise ValueError(f"the tiny models are written into {place.parent}, but {place.name} is something else there")


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
    """Write a tiny Llama of transformers in float32; the first token ends outputs, the others are letters.

    Raises `ValueError` where the package ``gguf`` is not installed.
    """
    with needing("GGUF files are written by the package gguf", "dev"):
        from gguf import GGUFWriter, TokenType

    writer = GGUFWriter(path, "llama")
    add_shape(writer, "tiny", model.config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([TokenType.CONTROL] + [TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["z z"])  # there must be one; this never applies
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(False)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(tensor_name(name), tensor_values(name, tensor.float().numpy(), model.config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: Any, name: str, config: Any) -> None:
    writer.add_name(name)
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


def tensor_name(name: str) -> str:
    """Return a weight's name in GGUF.

    Example:
        >>> tensor_name("model.layers.0.self_attn.q_proj.weight")
        'blk.0.attn_q.weight'
    """
    prefix, rest = "", name.removesuffix(".weight")
    if rest.startswith("model.layers."):
        layer, rest = rest.removeprefix("model.layers.").split(".", 1)
        prefix = f"blk.{layer}."
    return f"{prefix}{_TENSORS[rest]}.weight"


def tensor_values(name: str, values: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """Reorder a weight for llama.cpp: of each head, the pairs that are rotated together stand side by side."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    count = next((getattr(config, of) for part, of in heads.items() if part in name), None)
    if count is None:
        return values
    return np.ascontiguousarray(values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape))
