"""A Hugging Face causal language model with a cache that can be rolled back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class CachedModel:
    """Feeds a model token by token or in blocks, and forgets what was rejected.

    Attributes:
        model: the model.
        length: how many tokens the cache holds.
        extra_inputs: further keyword arguments of each forward pass until the next `reset`, such as
            ``output_hidden_states``.
        outputs: the last forward pass's, kept only where there are ``extra_inputs``.

    Raises:
        ValueError: for a model whose cache cannot be rolled back (recurrent state) or that is no decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Wrap a model with an empty cache."""
        check_can_roll_back(model)
        self.model = model
        self.device = model.device
        self._keeps_rows = model._supports_logits_to_keep()
        self.reset()

    @property
    def max_length(self) -> int | None:
        """Tokens that the model's context window holds, where its configuration says."""
        return context_window(self.model)

    def reset(self) -> None:
        """Forget everything."""
        self.length = 0
        self.extra_inputs: dict[str, Any] = {}
        self.outputs: Any = None
        self._cache = DynamicCache(config=self.model.config.get_text_config(decoder=True))
        self._slides = any(getattr(layer, "is_sliding", False) for layer in self._cache.layers)
        self._trimmed = 0
        self._records = hasattr(self._cache, "activate_past_recording")
        if self._records:
            self._cache.activate_past_recording()  # sliding windows then keep what a rollback needs

    @torch.inference_mode()
    def append(self, token_ids: list[int] | Tensor, rows: int) -> Tensor:
        """Feed the tokens that follow the cached ones; return the logits after each of the last ``rows`` of them.

        Args:
            token_ids: at least ``rows`` tokens, as a list or a tensor ``[n]`` on the model's device.
            rows: how many rows to return.

        Returns:
            Logits in the model's dtype, ``[rows, vocabulary]``.
        """
        block = torch.as_tensor(token_ids, device=self.device).view(1, -1)
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        output = self.model(input_ids=block, past_key_values=self._cache, use_cache=True, **keep, **self.extra_inputs)
        self.outputs = output if self.extra_inputs else None
        self.length += block.shape[1]
        return output.logits[0, -rows:]  # type: ignore[no-any-return]

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, or everything where a sliding window has lost some of those."""
        if self._slides and length < self._trimmed:
            self.reset()
            return
        surplus = self.length - length
        if surplus or self._records:  # sliding windows are also trimmed here, after each block
            self._cache.crop(-surplus)
        self.length = self._trimmed = length


def check_can_roll_back(model: PreTrainedModel) -> None:
    """Raise `ValueError` for a model that cannot take part in draft-and-verify decoding."""
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder model; allowed are decoder-only causal language models")
    if getattr(model, "_is_stateful", False):
        raise ValueError(f"{name} keeps a recurrent state, which cannot be rolled back after a rejection")


def context_window(model: PreTrainedModel) -> int | None:
    """Return how many tokens a model's positions reach, or None where its configuration does not say."""
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return window if isinstance(window, int) else None


def check_fits(role: str, window: int | None, prompt_length: int, num_speculative_tokens: int) -> None:
    """Raise `ValueError` where a context window has no room for a prompt, the proposals of a step, and a next token."""
    if window is None:
        return
    if num_speculative_tokens >= window:
        raise ValueError(
            f"num_speculative_tokens must be below the {role}'s {window} positions, but is {num_speculative_tokens}"
        )
    if prompt_length >= window:
        raise ValueError(
            f"the prompt must be shorter than the {role}'s {window} positions, but has {prompt_length} tokens"
        )


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return the width of a model's logits."""
    return int(model.config.get_text_config(decoder=True).vocab_size)
