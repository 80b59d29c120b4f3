"""What `CachedModel` asks of a forward pass."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Forward(Protocol):
    """Reads tokens into a cache of its own and gives logits."""

    def append(self, token_ids: Tensor, start: int, rows: int) -> Tensor:
        """Feed tokens ``[n]``, the first of them at position ``start``; return the last logits, ``[rows, vocabulary]``.

        The cache holds ``start`` tokens before the call.
        """
        ...

    def rollback(self, length: int, kept: int) -> int:
        """Keep the first ``kept`` of ``length`` cached tokens; return how many are left, 0 where some are lost."""
        ...
