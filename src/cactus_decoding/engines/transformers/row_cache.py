"""A cache whose rows stay in place, written into reserved room and forgotten by a number; and attention over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from cactus_decoding.engines.transformers import compatibility

ATTENTION = "sdpa_without_repeated_keys"
"""What the attention is called in transformers' registry, which is how a library adds one."""
MAX_QUERIES = 64  # beyond, products of matrices take the time, and not the reading of keys


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
    if group == 1 or count > MAX_QUERIES or not plain or dropout or query.shape[0] > 1:
        own: tuple[Tensor, None] = compatibility.SDPA(
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


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, compatibility.SDPA_MASK)


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
    compatibility.use_attention(config, ATTENTION)
    try:
        yield
    finally:
        compatibility.use_attention(config, "sdpa")


MIN_CAPACITY = 256  # tokens that there is room for at first


class RowLayer(DynamicLayer):
    """Keys and values of all tokens, ``[1, heads, tokens, head_dim]``: the used part of a store with more room.

    `DynamicLayer` copies everything that it holds for each block of tokens that is added. Here the store doubles where
    it is full, so a response of n tokens copies no more than n of them; a rollback makes the used part smaller, and
    copies none. ``keys`` and ``values`` may be set, as whoever selects or repeats texts of a batch does.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        self._stores: tuple[Tensor, Tensor] | None = None
        self._end = 0  # of the used part
        self._used: list[Any] | None = [None, None]  # made of the stores when it is asked for
        super().__init__(*args, **named)

    @property
    def keys(self) -> Tensor:
        used: Tensor = self._used_part[0]
        return used

    @keys.setter
    def keys(self, given: Tensor | None) -> None:
        self._set(0, given)

    @property
    def values(self) -> Tensor:
        used: Tensor = self._used_part[1]
        return used

    @values.setter
    def values(self, given: Tensor | None) -> None:
        self._set(1, given)

    @property
    def _used_part(self) -> list[Any]:
        if self._used is None:
            assert self._stores is not None
            self._used = [store[:, :, : self._end] for store in self._stores]
        return self._used

    def _set(self, place: int, given: Tensor | None) -> None:
        self._used_part[place], self._stores = given, None
        self._end = given.shape[-2] if given is not None and given.numel() else 0

    def get_seq_length(self) -> int:
        return self._end

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self._end
        end = start + key_states.shape[-2]
        stores = self._stores
        if stores is None or end > stores[0].shape[-2]:
            stores = self._reserve(end, key_states, value_states)
        stores[0][:, :, start:end] = key_states
        stores[1][:, :, start:end] = value_states
        self.use(end)
        return self.keys, self.values

    def with_room(self, end: int) -> tuple[Tensor, Tensor]:
        """Return the stores of keys and values, with room for so many tokens; there are some already."""
        stores = self._stores
        return self._reserve(end, self.keys, self.values) if stores is None or end > stores[0].shape[-2] else stores

    def use(self, end: int) -> None:
        """Have the stores' first tokens as the used part."""
        self._end, self._used = end, None

    def cut(self, count: int) -> None:
        if self._stores is not None:
            self.use(self._end - count)
        elif count and self.is_initialized:
            self.keys, self.values = self.keys[:, :, :-count], self.values[:, :, :-count]

    def crop(self, max_length: int) -> None:
        """Remove ``-max_length`` tokens."""
        if self._stores is not None and -self._end <= max_length < 0:
            self.cut(-max_length)
        else:
            super().crop(max_length)

    def keep(self, prefix: int, places: Tensor) -> None:
        """Keep the first tokens, and those at later places, ascending, which move next to them."""
        if not self.is_initialized:
            return
        end = prefix + len(places)
        for used in (self.keys, self.values):
            used[:, :, prefix:end] = used.index_select(-2, places)
        self.cut(self._end - end)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a layer with a copy of the used part, and no more room."""
        copied = type(self)()
        copied.__dict__.update(vars(self) | {"_stores": None, "_used": [None, None]})
        if self.is_initialized:
            copied._used = [self.keys.clone(), self.values.clone()]
        return copied

    def _reserve(self, end: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Make stores with room for so many tokens, and the used part in them, and return them."""
        room = max(end, MIN_CAPACITY, 0 if self._stores is None else 2 * self._stores[0].shape[-2])
        stores = [new.new_empty(*new.shape[:2], room, new.shape[3]) for new in (keys, values)]
        if self._end:
            stores[0][:, :, : self._end], stores[1][:, :, : self._end] = self.keys, self.values
        self._stores = stores[0], stores[1]
        self.use(self._end)
        return self._stores


def with_rows_in_place(cache: DynamicCache) -> DynamicCache:
    """Return an empty cache of transformers whose plain layers keep their rows in place; others stay as they are."""
    cache.layers = [RowLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
