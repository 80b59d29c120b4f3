"""Copies of caches, and the memory that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

_ORDER = count()


@dataclass(frozen=True)
class SavedText:
    """A copy of a cache: its tokens, and its state as `Forward.save` returned it."""

    token_ids: list[int]
    state: Any
    saved: int = field(default_factory=lambda: next(_ORDER))


class Saving(Protocol):
    saved: list[SavedText]


class SavedRoom:
    def __init__(self, max_bytes: int, caches: Sequence[Saving]) -> None:
        self._max_bytes, self._caches = max_bytes, caches

    def trim(self) -> None:
        """Forget the least recently used copies until the others fit."""
        copies = [(each.saved, num_bytes(each.state)) for cache in self._caches for each in cache.saved]
        left = sum(size for _, size in copies)
        for oldest, size in sorted(copies):
            if left <= self._max_bytes:
                return
            left -= size
            for cache in self._caches:
                cache.saved = [each for each in cache.saved if each.saved != oldest]


def num_bytes(state: Any) -> int:
    if hasattr(state, "nbytes"):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(num_bytes, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(num_bytes, state))
    # transformers' caches, and their layers
    known = any(kind.__module__ == "transformers.cache_utils" for kind in type(state).__mro__)
    return num_bytes(vars(state)) if known else 0
