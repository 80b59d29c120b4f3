"""Tiny models, made here: a target and drafts that are good, bad, adversarial and deterministic."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cactus_conform.engine import DRAFTS, END, LETTERS, VOCABULARY
from cactus_conform.processing import Rows

WIDTH, INNER, LAYERS, POSITIONS = 32, 16, 2, 64
EPSILON, ROPE_THETA = 1e-6, 10_000.0
NAMES = ("target", *DRAFTS)
PROMPTS = ((1, 2, 3), (1, 2, 3, 4, 5, 1, 2), (9, 7, 9))  # the second begins with the first
_LAYER = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH, WIDTH),
    "self_attn.v_proj": (WIDTH, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    **{f"model.layers.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in _LAYER.items()},
    "lm_head.weight": (VOCABULARY, WIDTH),
}
"""Matrices by their names in transformers; the weights of all norms are 1."""
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": WIDTH,
    "hidden_act": "silu",
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": EPSILON,
    "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": None,
}
_OURS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")


class TinyModel:
    """A Llama of about twelve thousand weights with one attention head, in float64."""

    def __init__(self, name: str) -> None:
        self._weights = {of: weight.astype(float) for of, weight in weights_of(name).items()}
        angles = np.arange(POSITIONS)[:, None] / ROPE_THETA ** (np.arange(0, WIDTH, 2) / WIDTH)
        self._cos, self._sin = (np.concatenate([each(angles)] * 2, -1) for each in (np.cos, np.sin))

    def logits(self, sequences: Sequence[Sequence[int]]) -> list[Rows]:
        """Return the logits after every token of each sequence, ``[tokens, vocabulary]``."""
        longest = max(map(len, sequences))
        ids = np.array([[*each, *[END] * (longest - len(each))] for each in sequences])
        hidden = self._weights["model.embed_tokens.weight"][ids]
        for layer in range(LAYERS):
            hidden = hidden + self._attention(f"model.layers.{layer}.self_attn", _normed(hidden))
            hidden = hidden + self._mlp(f"model.layers.{layer}.mlp", _normed(hidden))
        rows = _normed(hidden) @ self._weights["lm_head.weight"].T
        return [row[: len(each)] for row, each in zip(rows, sequences, strict=True)]

    def _attention(self, name: str, hidden: Rows) -> Rows:
        query, key, value = (hidden @ self._weights[f"{name}.{of}_proj.weight"].T for of in "qkv")
        length = hidden.shape[1]
        scores = self._rotated(query) @ self._rotated(key).swapaxes(1, 2) / WIDTH**0.5
        scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ value
        return np.asarray(mixed @ self._weights[f"{name}.o_proj.weight"].T)

    def _rotated(self, rows: Rows) -> Rows:
        first, second = np.split(rows, 2, -1)
        length = rows.shape[1]
        return np.asarray(rows * self._cos[:length] + np.concatenate([-second, first], -1) * self._sin[:length])

    def _mlp(self, name: str, hidden: Rows) -> Rows:
        gate, up = (hidden @ self._weights[f"{name}.{of}_proj.weight"].T for of in ("gate", "up"))
        return np.asarray((gate / (1 + np.exp(-gate)) * up) @ self._weights[f"{name}.down_proj.weight"].T)


def _normed(hidden: Rows) -> Rows:
    return np.asarray(hidden / np.sqrt((hidden**2).mean(-1, keepdims=True) + EPSILON))


@cache
def weights_of(name: str) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return a model's matrices in float32, by their names in transformers; `NAMES` are the models."""
    if name not in NAMES:
        raise ValueError(f"model must be one of {', '.join(NAMES)}, but is {name!r}")
    # so large that probabilities differ from place to place
    sets = ([1.5 / WIDTH**0.5 * each for each in _normals(seed)] for seed in (1, 2))
    return {
        of: np.asarray(_mixed(name, *pair, head=of == "lm_head.weight"), np.float32)
        for of, *pair in zip(SHAPES, *sets, strict=True)
    }


def _mixed(name: str, target: Rows, other: Rows, *, head: bool) -> Rows:
    """Return a draft's weights: near the target's, other ones, its opposite, or so sharp that it is one-hot."""
    if name == "good":
        return 0.97 * target + 0.08 * other
    if name == "bad":
        return other
    return target * ({"adversarial": -0.7, "deterministic": 200.0}.get(name, 1.0) if head else 1.0)


def _normals(seed: int) -> list[Rows]:
    """Draw normal numbers of `SHAPES` as PyTorch does, by which results of older versions can be repeated.

    Source: Box and Muller (1958), in blocks of 16, on 53 bits of MT19937.
    """
    generator, made = np.random.RandomState(seed), []
    for shape in SHAPES.values():
        words = generator.randint(0, 2**32, (np.prod(shape), 2), np.uint32).astype(np.uint64)
        bits = (words[:, 0] << np.uint64(32) | words[:, 1]) & np.uint64(2**53 - 1)
        uniform = (bits / 2**53).reshape(-1, 2, 8)
        radius, angle = np.sqrt(-2 * np.log(1 - uniform[:, 0])), 2 * np.pi * uniform[:, 1]
        made.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(shape))
    return made


def text_of(token_ids: Sequence[int]) -> str:
    """Return tokens as text; `END` has none."""
    return "".join(LETTERS[token - 1] for token in token_ids if token != END)


def tokens_of(text: str) -> list[int]:
    if unknown := set(text) - set(LETTERS):
        raise ValueError(f"the tiny models write the letters {LETTERS}, but here is {min(unknown)!r}")
    return [LETTERS.index(letter) + 1 for letter in text]


def gbnf(letters: str) -> str:
    return f"root ::= [{letters}]*"


def write_models(folder: Path, *, gguf: bool = False) -> Path:
    """Write every model into a folder of its name, and with ``gguf`` into ``NAME.gguf`` beside it; return the folder.

    ``folder`` is created if missing; ``gguf`` needs the package of this name. Raises `ValueError` where something else
    has the name of a model; nothing is written then.

    Example:
        >>> import tempfile
        >>> sorted(each.name for each in write_models(Path(tempfile.mkdtemp())).iterdir())
        ['adversarial', 'bad', 'deterministic', 'good', 'target']
    """
    from safetensors.numpy import save_file

    for name in NAMES:
        _check_ours(folder / name)
    sampling = {"do_sample": True, "eos_token_id": END, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    files = {
        "config.json": CONFIG,
        "generation_config.json": sampling,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name in NAMES:
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file, content in files.items():
            (place / file).write_text(json.dumps(content, indent=1) + "\n")
        save_file({**weights_of(name), **norms()}, place / "model.safetensors", metadata={"format": "pt"})
        if gguf:
            from cactus_conform.gguf_files import write_gguf

            write_gguf(name, folder / f"{name}.gguf")
    return folder


def norms() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    layers = [f"model.layers.{layer}." for layer in range(LAYERS)]
    names = [f"{layer}{of}" for layer in layers for of in ("input_layernorm", "post_attention_layernorm")]
    return {f"{name}.weight": np.ones(WIDTH, np.float32) for name in [*names, "model.norm"]}


def _tokenizer() -> dict[str, Any]:
    """Return a tokenizer, as the library tokenizers stores it, for which every letter is a token."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocabulary = {"</s>": END} | {letter: index + 1 for index, letter in enumerate(LETTERS)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": END, "content": "</s>", **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"},
    }


def _check_ours(place: Path) -> None:
    try:
        config = json.loads((place / "config.json").read_text())
        ours = all(config[name] == CONFIG[name] for name in _OURS)
    except (OSError, ValueError, KeyError, TypeError):
        ours = not place.exists() and not place.with_suffix(".gguf").exists()
    if not ours:
        raise ValueError(f"the tiny models are written into {place.parent}, but {place.name} is something else there")
