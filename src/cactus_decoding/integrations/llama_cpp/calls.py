"""What one call hands through the layers of llama-cpp-python, and how its model is read meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from llama_cpp import LogitsProcessorList
from torch import Tensor

from cactus_decoding.models.llama_cpp.context import Context
from cactus_decoding.models.llama_cpp.model import LlamaCppModel
from cactus_decoding.models.llama_cpp.weights import GgufModel


class Cancelled(Exception):
    """Somebody else ended the response."""


class CallProcessors(LogitsProcessorList):
    """The processors of one call, and what else it asks for: the only argument that every layer hands on.

    Args:
        processors: of logits.
        settings: of `SETTINGS`, and perhaps ``cancelled``.
        max_tokens: of the response; no limit, if None or not positive.
    """

    def __init__(self, processors: Any, settings: Mapping[str, Any], max_tokens: int | None = None) -> None:
        super().__init__(processors)
        self.settings, self.max_tokens = dict(settings), max_tokens
        self.cancelled: threading.Event | None = self.settings.pop("cancelled", None)


class InterruptibleContext(Context):
    """A context that looks before every batch of tokens whether its response was cancelled."""

    cancelled: threading.Event | None = None

    def read(self, token_ids: np.ndarray[Any, Any], start: int, rows: int) -> Tensor:
        """Read a batch; raise `Cancelled` in its place."""
        if self.cancelled is not None and self.cancelled.is_set():
            raise Cancelled
        return super().read(token_ids, start, rows)


class ScoredModel(LlamaCppModel):
    """A model that also writes all rows where llama-cpp-python looks for them, ``[positions, vocabulary]``."""

    def __init__(self, model: GgufModel, context: Context, scores: np.ndarray[Any, Any] | None) -> None:
        super().__init__(model, context=context)
        self._scores = scores

    def read_on(self, text: list[int]) -> int:
        """Keep what was read; nothing where all rows are wanted."""
        if self._scores is None:
            return super().read_on(text)
        self._clear()
        return 0

    def append(self, token_ids: Any, rows: int, positions: Any = None, mask: Any = None) -> Tensor:
        """Feed tokens; see `BaseCachedModel.append`."""
        if self._scores is None:
            return super().append(token_ids, rows, positions, mask)
        start, count = self.length, len(token_ids)
        logits = super().append(token_ids, count, positions, mask)
        self._scores[start : start + count] = logits.numpy()
        return logits[count - rows :]
