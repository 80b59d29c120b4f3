"""Keys and values in memory that is reserved ahead: appending writes in place, and forgetting costs nothing."""

from __future__ import annotations

import torch
from torch import Tensor


class StaticCache:
    """Keys and values of each layer, ``[key_value_heads, capacity, head_dim]``; only the first ``length`` count.

    Who reads it keeps the length, so a rollback is a smaller number and no work. Capacity doubles when it runs out, so
    a response of n tokens copies no more than n of them, and a step copies none.

    Args:
        layers: how many.
        heads: key and value heads.
        head_dim: numbers in each of them.
        like: a tensor of the dtype and on the device that are wanted.
        max_length: how many tokens to reserve at most, unless more are asked for.
    """

    MIN_CAPACITY = 256

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor, max_length: int) -> None:
        self._max_length = max_length
        self.keys = [like.new_empty(heads, 0, head_dim) for _ in range(layers)]
        self.values = [like.new_empty(heads, 0, head_dim) for _ in range(layers)]

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return self.keys[0].shape[1]

    def fits(self, layers: int, heads: int, head_dim: int, like: Tensor) -> bool:
        """Say whether this is a cache for such keys and values."""
        keys = self.keys[0]
        shape = (len(self.keys), keys.shape[0], keys.shape[2])
        return shape == (layers, heads, head_dim) and keys.dtype == like.dtype and keys.device == like.device

    def move(self, places: list[int], first: int) -> None:
        """Move what lies at some places to ``first`` and those after it."""
        index = torch.tensor(places, device=self.keys[0].device)
        for store in (*self.keys, *self.values):
            store[:, first : first + len(places)] = store.index_select(1, index)

    def reserve(self, end: int, length: int) -> None:
        """Make room for ``end`` tokens, keeping the first ``length``."""
        if end <= self.capacity:
            return
        room = max(end, min(max(2 * self.capacity, self.MIN_CAPACITY), self._max_length))
        for store in (self.keys, self.values):
            for i, old in enumerate(store):
                store[i] = old.new_empty(old.shape[0], room, old.shape[2])
                store[i][:, :length] = old[:, :length]
