"""What models read, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cactus_decoding.core.models.base import BaseCachedModel


@contextmanager
def reads() -> Iterator[list[tuple[int, int]]]:
    """Yield how many tokens each pass reads, and behind how many."""
    found: list[tuple[int, int]] = []
    append = BaseCachedModel.append

    def noted(self, token_ids, *given, **named):
        found.append((self.length, len(token_ids)))
        return append(self, token_ids, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseCachedModel, "append", noted)
        yield found
