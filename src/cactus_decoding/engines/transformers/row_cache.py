"""A cache whose rows stay in place: keys and values are written into reserved room, and forgotten by a number."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

MIN_CAPACITY = 256
"""Tokens that there is room for at first."""


class RowLayer(DynamicLayer):
    """Keys and values of all tokens, ``[1, heads, tokens, head_dim]``: the used part of a store with more room.

    `DynamicLayer` copies everything that it holds for each block of tokens that is added. Here the store doubles where
    it is full, so a response of n tokens copies no more than n of them; a rollback makes the used part smaller, and
    copies none.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._stores: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values; return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        stores = self._stores
        # whoever selects or repeats texts of a batch puts other tensors in place of the used part
        if stores is None or end > stores[0].shape[-2] or self.keys.data_ptr() != stores[0].data_ptr():
            stores = self._stores = self._reserved(end, start, key_states, value_states)
        stores[0][:, :, start:end] = key_states
        stores[1][:, :, start:end] = value_states
        self._use(end)
        return self.keys, self.values

    def cut(self, count: int) -> None:
        """Forget the last tokens."""
        if count and self.is_initialized:
            self.keys, self.values = self.keys[:, :, :-count], self.values[:, :, :-count]

    def keep(self, prefix: int, places: Tensor) -> None:
        """Keep the first tokens, and those at later places, ascending, which move next to them."""
        if not self.is_initialized:
            return
        end = prefix + len(places)
        for used in (self.keys, self.values):
            used[:, :, prefix:end] = used.index_select(-2, places)
        self.keys, self.values = self.keys[:, :, :end], self.values[:, :, :end]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a layer with a copy of the used part, and no more room."""
        copied = type(self)()
        copied.__dict__.update(vars(self) | {"_stores": None})
        if self.is_initialized:
            copied.keys, copied.values = self.keys.clone(), self.values.clone()
        return copied

    def _use(self, end: int) -> None:
        assert self._stores is not None
        self.keys, self.values = self._stores[0][:, :, :end], self._stores[1][:, :, :end]

    def _reserved(self, end: int, used: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return stores with room for so many tokens, and the used part in them."""
        room = max(end, MIN_CAPACITY, 0 if self._stores is None else 2 * self._stores[0].shape[-2])
        stores = [new.new_empty(*new.shape[:2], room, new.shape[3]) for new in (keys, values)]
        if used:
            stores[0][:, :, :used], stores[1][:, :, :used] = self.keys, self.values
        return stores[0], stores[1]


def with_rows_in_place(cache: DynamicCache) -> DynamicCache:
    """Return an empty cache of transformers whose plain layers keep their rows in place; others stay as they are."""
    cache.layers = [RowLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
