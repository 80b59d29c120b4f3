"""Twins of the bundled models: as wide and deep as a real model, with the same logits.

A twin costs what a model of its shape costs, and says what the bundled model says, so that speed can be measured with
real acceptance where no weights of that size can be had. What is added changes nothing:

* a wider hidden state is zero in its new places, since no embedding and no layer writes there;
* new heads and new units of a feed-forward layer are random, but what they write is multiplied by zero, and so are all
  outputs of a new layer;
* RMSNorm divides by a mean over more places, which its weights and its epsilon make up for;
* one of the new places holds a constant, from which the head of each token that pads the vocabulary gets a logit of
  about -1000 or less, so that none of them is ever drawn. The constant's square takes the place of epsilon.

Only models of Llama's architecture whose head is their embedding, without biases, can have twins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from cactus_decoding import ModelDrafter, zoo
from cactus_decoding.core.models.loading import load_tokenizer
from cactus_decoding.core.pair import Pair
from cactus_decoding.engines.transformers.cached_model import CachedModel

VOCABULARY = 151_936
"""Tokens of Qwen's models, among which are those of the bundled ones."""
_SPARE_EPSILON = 0.5
"""Share of epsilon that the constant's square takes."""
_PADDING = -1e10
_FINAL_GAIN = 1e-3


@dataclass(frozen=True)
class Shape:
    """Of a twin; heads keep the size that they have."""

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_heads: int
    vocabulary: int = VOCABULARY


SHAPES = {
    "8B": Shape(hidden=4096, layers=32, feed_forward=14_336, heads=64, key_heads=16),
    "1B": Shape(hidden=2048, layers=16, feed_forward=8192, heads=32, key_heads=8),
    "0.9B": Shape(hidden=2048, layers=16, feed_forward=4096, heads=32, key_heads=8),
    "0.5B": Shape(hidden=896, layers=24, feed_forward=4864, heads=28, key_heads=4),
    "0.1B": Shape(hidden=512, layers=8, feed_forward=1536, heads=16, key_heads=8),
    "0.04B": Shape(hidden=256, layers=4, feed_forward=768, heads=8, key_heads=4),
    "small": Shape(hidden=384, layers=7, feed_forward=640, heads=12, key_heads=6, vocabulary=1200),
    "tiny": Shape(hidden=192, layers=4, feed_forward=320, heads=8, key_heads=4, vocabulary=1200),
}
"""By their numbers of weights; `small` and `tiny` are for tests."""


def twin_pair(
    target: Shape, draft: Shape, *, bundled_draft: str = "worded", dtype: torch.dtype, device: torch.device | str
) -> Pair:
    """Return twins of the bundled target and of one of its drafts, with empty caches; every prompt is read anew."""
    models = [
        twin(LlamaForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32), shape, dtype=dtype, device=device)
        for role, shape in (("target", target), (bundled_draft, draft))
    ]
    tokenizer = load_tokenizer("target", zoo.path("target"))
    return Pair(CachedModel(models[0]), ModelDrafter(models[1]), tokenizer, kept_prompts=0)


@torch.no_grad()
def twin(
    model: LlamaForCausalLM, shape: Shape, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> LlamaForCausalLM:
    """Return a model of a shape with a model's logits for its tokens, and about -1000 or less for others.

    Raises:
        ValueError: for a shape that is narrower or less deep than the model, or has no room for the constant.
    """
    old = model.config
    _check(old, shape)
    epsilon, constant = _epsilon_and_constant(old, shape, dtype)
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            wide = LlamaForCausalLM(_config(old, shape, epsilon)).eval()
    finally:
        torch.set_default_dtype(before)
    gain = math.sqrt(old.hidden_size / shape.hidden)
    size, place = old.hidden_size, old.hidden_size  # the constant stands right after the old places
    embedding = wide.model.embed_tokens.weight.zero_()
    embedding[: old.vocab_size, :size] = model.model.embed_tokens.weight
    embedding[: old.vocab_size, place] = constant
    embedding[old.vocab_size :, place] = _PADDING
    wide.model.norm.weight.zero_()[:size] = model.model.norm.weight * gain
    wide.model.norm.weight[place] = _FINAL_GAIN * gain
    heads = _places(old.num_attention_heads, old.head_dim, shape.heads // shape.key_heads)
    key_heads = _places(old.num_key_value_heads, old.head_dim, 1)
    units = torch.arange(old.intermediate_size)
    for i, layer in enumerate(wide.model.layers):
        attention, feed_forward = layer.self_attn, layer.mlp
        for weight in (attention.o_proj.weight, feed_forward.down_proj.weight):
            weight.zero_()
        if i >= old.num_hidden_layers:
            continue
        mine = model.model.layers[i]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weight = getattr(layer, norm).weight.zero_()  # nobody reads the constant
            weight[:size] = getattr(mine, norm).weight * gain
        read = [(getattr(attention, f"{name}_proj"), getattr(mine.self_attn, f"{name}_proj"), places)
                for name, places in (("q", heads), ("k", key_heads), ("v", key_heads))]  # fmt: skip
        read += [(getattr(feed_forward, f"{name}_proj"), getattr(mine.mlp, f"{name}_proj"), units)
                 for name in ("gate", "up")]  # fmt: skip
        for ours, theirs, places in read:
            _rows(ours.weight, theirs.weight, places)
        for ours, theirs, places in (
            (attention.o_proj, mine.self_attn.o_proj, heads),
            (feed_forward.down_proj, mine.mlp.down_proj, units),
        ):
            _rows(ours.weight.t(), theirs.weight.t(), places)
    return wide


def _rows(ours: Tensor, theirs: Tensor, places: Tensor) -> None:
    """Put a matrix's rows in their places of a larger one, at the beginning of its rows."""
    places = places.to(ours.device)
    ours[places, : theirs.shape[1]] = theirs.to(ours.device, ours.dtype)


def _places(count: int, size: int, apart: int) -> Tensor:
    """Return the rows of the old heads: each is the first of those that share a key head."""
    return (torch.arange(count)[:, None] * apart * size + torch.arange(size)).flatten()


def _epsilon_and_constant(old: LlamaConfig, shape: Shape, dtype: torch.dtype) -> tuple[float, float]:
    r"""Return the wide norm's epsilon e' and the constant c.

    .. math:: \frac{c^2}{H'} + e' = \frac{H}{H'} e
    """
    whole = old.rms_norm_eps * old.hidden_size
    constant = float(torch.tensor(math.sqrt(_SPARE_EPSILON * whole), dtype=dtype))
    return (whole - constant**2) / shape.hidden, constant


def _config(old: LlamaConfig, shape: Shape, epsilon: float) -> LlamaConfig:
    return LlamaConfig.from_dict(old.to_dict() | {
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads, "rms_norm_eps": epsilon,
    })  # fmt: skip


def _check(old: LlamaConfig, shape: Shape) -> None:
    if not old.tie_word_embeddings or old.attention_bias or old.mlp_bias:
        raise ValueError("a twin is made of a model without biases whose head is its embedding")
    if shape.heads % shape.key_heads or old.num_attention_heads != old.num_key_value_heads:
        raise ValueError(f"heads must be a multiple of key heads, and the model's own as many, but are {shape}")
    least = replace(shape, hidden=old.hidden_size + 1, layers=old.num_hidden_layers,
                    feed_forward=old.intermediate_size, heads=old.num_attention_heads,
                    key_heads=old.num_key_value_heads, vocabulary=old.vocab_size)  # fmt: skip
    short = [name for name in vars(least) if getattr(shape, name) < getattr(least, name)]
    if short:
        raise ValueError(f"a twin's {', '.join(short)} must be at least those of {least}, but are {shape}")
