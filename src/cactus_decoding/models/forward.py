"""What `CachedModel` asks of a forward pass."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Forward(Protocol):
    """Reads tokens into a cache of its own and gives logits."""

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens ``[n]`` behind those in the cache; return the last logits, ``[rows, vocabulary]``.

        By default the tokens are a chain: each sees all before it, and its position is its place in the cache.

        Args:
            token_ids: on the model's device, as are the others.
            start: how many tokens the cache holds before the call.
            rows: how many rows to return.
            positions: ``[n]``, each below ``start + n``.
            mask: ``[n, start + n]``, true where a token sees a cached or a new one, itself included.
        """
        ...

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep the first ``prefix`` of ``length`` cached tokens, and those at the later places ``path``, ascending.

        Returns:
            How many are left; 0 where some that were to be kept are lost.
        """
        ...
