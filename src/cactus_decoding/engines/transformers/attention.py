"""Attention of few queries that repeats no key, for models whose query heads share key heads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from cactus_decoding.engines.transformers import compatibility

NAME = "sdpa_without_repeated_keys"
"""What the attention is called in transformers' registry, which is how a library adds one."""
MAX_QUERIES = 64
"""Beyond, products of matrices take the time, and not the reading of keys."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' ``sdpa`` does, up to rounding; see its `AttentionInterface`.

    transformers copies all keys and values once for each query head where there is a mask, which at 8,192 tokens takes
    longer than the rest of the layer. Here query heads that share a key head are further queries of it. In 16 bits on
    CPUs, where that would round otherwise, the kernel is told of the groups instead.
    """
    count, heads, group = query.shape[2], key.shape[1], query.shape[1] // key.shape[1]
    plain = count == 1 if attention_mask is None else attention_mask.shape[1] == 1  # else it is causal, or by heads
    if group == 1 or count > MAX_QUERIES or not plain or dropout or len(query) > 1:
        own: tuple[Tensor, None] = compatibility.sdpa()(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return own
    if key.dtype.itemsize <= 2 and key.device.type == "cpu":
        attended = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
        return attended.transpose(1, 2).contiguous(), None
    queries = query.reshape(1, heads, group * count, -1)
    mask = None if attention_mask is None else attention_mask.repeat(1, 1, group, 1)
    attended = scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
    return attended.view(1, heads * group, count, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, compatibility.sdpa_mask())


def takes_attention(model: PreTrainedModel) -> bool:
    """Whether a model's query heads share key heads, and it reads its attention from the registry.

    Not where what ``sdpa`` means in the registry was replaced.
    """
    config = model.config.get_text_config(decoder=True)
    shared = getattr(config, "num_key_value_heads", None) not in (None, getattr(config, "num_attention_heads", None))
    return shared and compatibility.reads_attention_from_registry(model)


@contextmanager
def registered_attention(config: Any) -> Iterator[None]:
    """Have a configuration name the attention for a while, where it names transformers' own ``sdpa``."""
    if compatibility.attention_of(config) != "sdpa" or not compatibility.sdpa_is_own():
        yield
        return
    compatibility.use_attention(config, NAME)
    try:
        yield
    finally:
        compatibility.use_attention(config, "sdpa")
