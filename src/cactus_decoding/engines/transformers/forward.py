"""The forward pass of transformers itself, for every decoder-only model."""

from __future__ import annotations

import copy
import inspect
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from cactus_decoding.core.models.recurrent import StatefulForward
from cactus_decoding.engines.transformers import compatibility
from cactus_decoding.engines.transformers.recorded import RecordedPasses
from cactus_decoding.engines.transformers.row_cache import (
    RowLayer,
    registered_attention,
    takes_attention,
    with_rows_in_place,
)

_CHUNK = 512  # tokens that are read at once after others: the mask of a longer block would grow with its square
_FEW = 64  # rows from which on it does not matter whether they are a multiple of 4


class GeneralForward(StatefulForward):
    """Calls the model with a cache whose rows stay in place, and with an attention that repeats no key.

    The last call's outputs are kept only where there are ``extra_inputs``, keyword arguments of each call.
    """

    def __init__(
        self, model: PreTrainedModel, extra_inputs: dict[str, Any], recorded: RecordedPasses | None = None
    ) -> None:
        self.extra_inputs = extra_inputs
        self.outputs: Any = None
        self._model, self._device = model, model.device
        self._config = model.config.get_text_config(decoder=True)
        named = inspect.signature(model.forward).parameters
        self._keeps_rows = "logits_to_keep" in named
        self._takes_positions = "position_ids" in named
        self._cache_argument = compatibility.cache_argument(model) or compatibility.default_cache_argument()
        self._records = not compatibility.keeps_recurrent_state(model)
        self._cache = with_rows_in_place(compatibility.empty_cache(self._config, record_past=self._records))
        self._shares_keys = takes_attention(model)
        self._eager = compatibility.attention_of(self._config) == "eager"
        self._slides = any(getattr(layer, "is_sliding", False) for layer in self._cache.layers)
        self._in_place = all(type(layer) is RowLayer for layer in self._cache.layers)
        # float32 matrix products on CPUs are faster with 4 or 8 rows than with 3 or 7
        self._gives_positions = self._takes_positions and not compatibility.counts_positions_itself(model)
        fast = self._device.type == "cpu" and model.dtype == torch.float32
        self._fills_rows = fast and self._gives_positions and self._in_place
        self._trimmed = 0
        sure = self._in_place and self._gives_positions and self._keeps_rows and not extra_inputs
        self._recorded = recorded if sure else None

    @property
    def layers(self) -> list[Any]:
        return list(self._cache.layers)

    def _plain(self) -> GeneralForward:
        return GeneralForward(self._model, {})

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens; see `Forward.append`. Raise `ValueError` where the model takes no tree, or fills no cache."""
        count = len(token_ids)
        if start and self._in_place and positions is None and mask is None and not self.extra_inputs:
            while count - _CHUNK >= max(rows, 1):
                self.append(token_ids[:_CHUNK], start, 1)
                token_ids, start, count = token_ids[_CHUNK:], start + _CHUNK, count - _CHUNK
        fill = int(bool(start) and count % 4 == 3 and count < _FEW and self._fills_rows and not self.extra_inputs)
        if self._recorded is not None and start and positions is None and mask is None:
            replay = self._recorded.of(self._model, self._config, self._plain, count, rows, fill)
            if replay is not None:
                return replay(token_ids, start, self._cache.layers)
        places = dict[str, Tensor | None]()
        if positions is not None or mask is not None:
            places = self._tree_inputs(start, count, positions, mask)
        elif self._gives_positions:  # as `generate` does; some models count from elsewhere where they are given none
            places["position_ids"] = torch.arange(start, start + count, device=self._device)[None]
        if fill:  # a token that the others do not see, and that is forgotten at once
            token_ids, places = _with_junk(token_ids, places)
        keep = {"logits_to_keep": rows + fill} if self._keeps_rows else {}
        with registered_attention(self._config) if self._shares_keys else nullcontext():
            output = self._model(
                input_ids=token_ids.view(1, -1),
                use_cache=True,
                **{self._cache_argument: self._cache},
                **places,
                **keep,
                **self.extra_inputs,
            )
        if fill:
            self._forget(fill)
        if not start and (filled := self._cache.get_seq_length()) != len(token_ids):
            raise ValueError(f"{type(self._model).__name__} cached {filled} tokens where {len(token_ids)} were read")
        if not start and self._records and (layers := compatibility.uncroppable_layers(self._cache)):
            raise ValueError(f"{type(self._model).__name__} cannot be rolled back: it fills a {layers[0]}")
        self.outputs = output if self.extra_inputs else None
        rows_end = output.logits.shape[1] - fill
        return output.logits[0, rows_end - rows : rows_end]  # type: ignore[no-any-return]

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep a prefix and a path after it; nothing where a sliding window has lost some of the prefix."""
        kept = prefix + len(path)
        if path:
            self._check_takes_trees()
            places = torch.tensor(path)
            for layer in self._cache.layers:
                layer.keep(prefix, places.to(self._device if layer.keys is None else layer.keys.device))
        elif self._slides and prefix < self._trimmed:
            return 0
        elif length > kept or (self._records and not self._in_place):  # windows are also trimmed here, after each block
            self._forget(length - kept)
        self._trimmed = kept
        return kept

    def _forget(self, count: int) -> None:
        if not self._in_place:
            compatibility.remove_last(self._cache, count)
            return
        for layer in self._cache.layers:
            layer.cut(count)

    def save(self, length: int) -> tuple[DynamicCache, int]:
        """Return a copy of the cache; of rows in place, the used ones."""
        return copy.deepcopy(self._cache), self._trimmed

    def restore(self, saved: tuple[DynamicCache, int]) -> None:
        """Take a copy, which nobody else has."""
        self._cache, self._trimmed = saved

    def copy_state(self) -> list[dict[str, dict[int, Tensor]]]:
        return [
            {name: {i: state.clone() for i, state in states.items()} for name, states in compatibility.states_of(layer)}
            for layer in self._cache.layers
        ]

    @torch.inference_mode()
    def restore_state(self, state: list[dict[str, dict[int, Tensor]]], length: int) -> None:
        """Take copies of the states, and forget keys and values after them."""
        for layer, copies in zip(self._cache.layers, state, strict=True):
            if isinstance(layer, DynamicLayer) and layer.is_initialized:
                layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
            for name, states in copies.items():
                for i, copied in states.items():
                    getattr(layer, name)[i].copy_(copied)

    def _tree_inputs(
        self, start: int, count: int, positions: Tensor | None, mask: Tensor | None
    ) -> dict[str, Tensor | None]:
        """Return positions and mask as the model takes them; it would count positions itself by a mask's columns."""
        self._check_takes_trees()
        if positions is None:
            positions = torch.arange(start, start + count, device=self._device)
        if mask is not None:
            mask = mask[None, None]
            if self._eager:  # it adds masks to its scores, others take booleans
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
        kinds = {type(layer).__name__ for layer in self._cache.layers} - {RowLayer.__name__}
        if self._slides or "local" in getattr(config, "attention_layers", ()):
            return "its attention slides over a window of neighbours"
        if kinds:
            return f"its cache holds other things than keys and values ({', '.join(sorted(kinds))})"
        attention = compatibility.attention_of(config)
        if attention not in ("sdpa", "eager"):
            return f"its attention, {attention}, takes no mask of its own; load it with attn_implementation='sdpa'"
        if not self._takes_positions or getattr(config, "alibi", False):
            return "it counts positions itself, and takes none"
        return None


def _with_junk(token_ids: Tensor, places: dict[str, Tensor | None]) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return a block with one more token, the last one again, and its positions and mask with that token."""
    positions, mask = places.get("position_ids"), places.get("attention_mask")
    longer = dict(places)
    if positions is not None:
        longer["position_ids"] = torch.cat((positions, positions[:, -1:]), 1)
    if mask is not None:
        hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        wider = pad(mask, (0, 1), value=hidden)
        longer["attention_mask"] = torch.cat((wider, wider[..., -1:, :]), -2)
    return torch.cat((token_ids, token_ids[-1:])), longer


def check_fills_cache(model: PreTrainedModel) -> None:
    """Raise `ValueError` for a model that says that it fills no cache; what does not say so shows when it reads."""
    name = type(model).__name__
    if compatibility.cache_argument(model) is None and "input_ids" in inspect.signature(model.forward).parameters:
        names = " or ".join(compatibility.CACHE_NAMES)
        raise ValueError(f"{name} takes no {names}, and so fills no cache that could be rolled back")
    if model.training and compatibility.checkpoints_gradients(model):
        raise ValueError(
            f"{name} is in training mode with gradient checkpointing, and so fills no cache: call its eval()"
        )
    # the switch means nothing to some architectures, and an audio model's encoder is none of the text's business
    switched_off = getattr(model.config.get_text_config(decoder=True), "is_decoder", None) is False
    if switched_off and any(vars(module).get("is_decoder") is False for module in model.modules()):
        raise ValueError(
            f"{name} is an encoder, and so fills no cache: load it with is_decoder=True in its configuration"
        )
