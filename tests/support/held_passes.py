"""Passes of llama.cpp that wait before they read, and small ones, so that a short prompt takes several."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from cactus_decoding.engines.llama_cpp.models import model, passes
from cactus_decoding.engines.llama_cpp.models.context import Context


@dataclass
class HeldPasses:
    """``begun`` is what passes read, of which each waits for a release of ``gate``."""

    gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    begun: list[list[int]] = field(default_factory=list)  # their tokens


@contextmanager
def held_passes(tokens: int = 16) -> Iterator[HeldPasses]:
    """Hold passes of at most so many tokens, until the block ends."""
    held, read = HeldPasses(), Context.read

    def held_back(self, portions):
        held.begun.append([int(token) for each in portions for token in each.token_ids])
        held.gate.acquire()
        return read(self, portions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "read", held_back)
        for module in (model, passes):
            patch.setattr(module, "_PASS", tokens)
        try:
            yield held
        finally:
            held.gate.release(10_000)
