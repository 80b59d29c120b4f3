"""What one call hands through the layers of llama-cpp-python."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from llama_cpp import LogitsProcessorList


class CallProcessors(LogitsProcessorList):
    """The processors of one call, and what else it asks for: the only argument that every layer hands on.

    Args:
        processors: of logits.
        settings: of `SETTINGS`, and perhaps ``cancelled`` and ``choices``.
        max_tokens: of the response; no limit, if None or not positive.
        stop: texts at which llama-cpp-python ends it.
    """

    def __init__(
        self,
        processors: Any,
        settings: Mapping[str, Any],
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(processors)
        self.settings, self.max_tokens = dict(settings), max_tokens
        self.stop = tuple(each for each in ([stop] if isinstance(stop, str) else stop or ()) if each)
        self.cancelled: threading.Event | None = self.settings.pop("cancelled", None)
        self.choices: Sequence[str] | None = self.settings.pop("choices", None)
        self.thinking_budget: int | None = self.settings.pop("thinking_budget", None)
