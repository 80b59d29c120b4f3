"""The forward pass of transformers itself, for every decoder-only model."""

from __future__ import annotations

import copy
import inspect
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from cactus_decoding.core.models.recurrent import StatefulForward


class GeneralForward(StatefulForward):
    """Calls the model with transformers' own cache.

    The last call's outputs are kept only where there are ``extra_inputs``, keyword arguments of each call.
    """

    def __init__(self, model: PreTrainedModel, extra_inputs: dict[str, Any]) -> None:
        self.extra_inputs = extra_inputs
        self.outputs: Any = None
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        self._keeps_rows = model._supports_logits_to_keep()
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._cache = DynamicCache(config=self._config)
        self._slides = any(getattr(layer, "is_sliding", False) for layer in self._cache.layers)
        self._trimmed = 0
        stateful = getattr(model, "_is_stateful", False)
        self._records = hasattr(self._cache, "activate_past_recording") and not stateful
        if self._records:
            self._cache.activate_past_recording()  # sliding windows then keep what a rollback needs

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens; see `Forward.append`. Raise `ValueError` where the model takes no tree, or fills no cache."""
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        if positions is None and mask is None:
            places = self._chain_inputs(start, len(token_ids))
        else:
            places = self._tree_inputs(start, len(token_ids), positions, mask)
        output = self._model(
            input_ids=token_ids.view(1, -1),
            past_key_values=self._cache,
            use_cache=True,
            **places,
            **keep,
            **self.extra_inputs,
        )
        if not start and (filled := self._cache.get_seq_length()) != len(token_ids):
            raise ValueError(f"{type(self._model).__name__} cached {filled} tokens where {len(token_ids)} were read")
        self.outputs = output if self.extra_inputs else None
        return output.logits[0, -rows:]  # type: ignore[no-any-return]

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep a prefix and a path behind it; nothing where a sliding window has lost some of the prefix.

        Raises `ValueError` for a path in a cache that holds anything but the keys and values of all tokens.
        """
        kept = prefix + len(path)
        if path:
            self._check_takes_trees()
            for layer in self._cache.layers:
                places = torch.tensor(path, device=layer.keys.device)
                for store in (layer.keys, layer.values):
                    store[..., prefix:kept, :] = store.index_select(-2, places)
        elif self._slides and prefix < self._trimmed:
            return 0
        if length > kept or self._records:  # sliding windows are also trimmed here, after each block
            self._cache.crop(kept - length)
        self._trimmed = kept
        return kept

    def save(self, length: int) -> tuple[DynamicCache, int]:
        """Return a copy of transformers' cache."""
        return copy.deepcopy(self._cache), self._trimmed

    def restore(self, saved: tuple[DynamicCache, int]) -> None:
        """Take a copy, which nobody else has."""
        self._cache, self._trimmed = saved

    def copy_state(self) -> list[dict[str, dict[int, Tensor]]]:
        """Return copies of the states of each layer that has some."""
        return [
            {
                name: {i: state.clone() for i, state in getattr(layer, name).items() if state is not None}
                for name in ("conv_states", "recurrent_states")
                if isinstance(layer, LinearAttentionCacheLayerMixin)
            }
            for layer in self._cache.layers
        ]

    @torch.inference_mode()
    def restore_state(self, state: list[dict[str, dict[int, Tensor]]], length: int) -> None:
        """Take copies of the states, and forget keys and values behind them."""
        for layer, copies in zip(self._cache.layers, state, strict=True):
            if isinstance(layer, DynamicLayer):
                DynamicLayer.crop(layer, length - layer.get_seq_length())
            for name, states in copies.items():
                for i, copied in states.items():
                    getattr(layer, name)[i].copy_(copied)

    def _chain_inputs(self, start: int, count: int) -> dict[str, Tensor | None]:
        """Return the positions that `generate` gives; some models count from elsewhere where they are given none."""
        if not self._takes_positions or self._counts_otherwise:
            return {}
        return {"position_ids": torch.arange(start, start + count, device=self._model.device)[None]}

    @cached_property
    def _counts_otherwise(self) -> bool:
        """Whether `generate` asks the model itself for positions, which have several dimensions."""
        name = "_prepare_position_ids_for_generation"
        return getattr(type(self._model), name, None) is not getattr(GenerationMixin, name, None)

    def _tree_inputs(
        self, start: int, count: int, positions: Tensor | None, mask: Tensor | None
    ) -> dict[str, Tensor | None]:
        """Return positions and mask as the model takes them; it would count positions itself by a mask's columns."""
        self._check_takes_trees()
        if positions is None:
            positions = torch.arange(start, start + count, device=self._model.device)
        if mask is not None:
            mask = mask[None, None]
            if self._config._attn_implementation == "eager":  # it adds masks to its scores, others take booleans
                dtype = self._model.dtype
                mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
        return {"position_ids": positions[None], "attention_mask": mask}

    def _check_takes_trees(self) -> None:
        if self._obstacle:
            raise ValueError(f"{type(self._model).__name__} cannot read trees of tokens: {self._obstacle}")

    @cached_property
    def _obstacle(self) -> str | None:
        """What of the model depends on the order of tokens in the cache, or takes no mask; None if nothing does."""
        config = self._config
        kinds = {type(layer).__name__ for layer in self._cache.layers} - {DynamicLayer.__name__}
        if self._slides or "local" in getattr(config, "attention_layers", ()):
            return "its attention slides over a window of neighbours"
        if kinds:
            return f"its cache holds other things than keys and values ({', '.join(sorted(kinds))})"
        attention = config._attn_implementation
        if attention not in ("sdpa", "eager"):
            return f"its attention, {attention}, takes no mask of its own; load it with attn_implementation='sdpa'"
        if not self._takes_positions or getattr(config, "alibi", False):
            return "it counts positions itself, and takes none"
        return None


def check_fills_cache(model: PreTrainedModel) -> None:
    """Raise `ValueError` for a model that says that it fills no cache; what does not say so shows when it reads."""
    name = type(model).__name__
    if "past_key_values" not in (named := inspect.signature(model.forward).parameters) and "input_ids" in named:
        raise ValueError(f"{name} takes no past_key_values, and so fills no cache that could be rolled back")
    if model.training and model.is_gradient_checkpointing:
        raise ValueError(
            f"{name} is in training mode with gradient checkpointing, and so fills no cache: call its eval()"
        )
    # the switch means nothing to some architectures, and an audio model's encoder is none of the text's business
    switched_off = getattr(model.config.get_text_config(decoder=True), "is_decoder", None) is False
    if switched_off and any(vars(module).get("is_decoder") is False for module in model.modules()):
        raise ValueError(
            f"{name} is an encoder, and so fills no cache: load it with is_decoder=True in its configuration"
        )
