"""The forward pass of transformers itself, for every decoder-only model."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class GeneralForward:
    """Calls the model with transformers' own cache.

    Attributes:
        extra_inputs: further keyword arguments of each call.
        outputs: the last call's, kept only where there are ``extra_inputs``.
    """

    def __init__(self, model: PreTrainedModel, extra_inputs: dict[str, Any]) -> None:
        """Begin with an empty cache."""
        self.extra_inputs = extra_inputs
        self.outputs: Any = None
        self._model = model
        self._keeps_rows = model._supports_logits_to_keep()
        self._cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        self._slides = any(getattr(layer, "is_sliding", False) for layer in self._cache.layers)
        self._trimmed = 0
        self._records = hasattr(self._cache, "activate_past_recording")
        if self._records:
            self._cache.activate_past_recording()  # sliding windows then keep what a rollback needs

    def append(self, token_ids: Tensor, start: int, rows: int) -> Tensor:
        """Feed tokens; see `Forward.append`."""
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        block = token_ids.view(1, -1)
        output = self._model(input_ids=block, past_key_values=self._cache, use_cache=True, **keep, **self.extra_inputs)
        self.outputs = output if self.extra_inputs else None
        return output.logits[0, -rows:]  # type: ignore[no-any-return]

    def rollback(self, length: int, kept: int) -> int:
        """Forget; everything where a sliding window has lost some of what is to be kept."""
        if self._slides and kept < self._trimmed:
            return 0
        if length > kept or self._records:  # sliding windows are also trimmed here, after each block
            self._cache.crop(kept - length)
        self._trimmed = kept
        return kept
