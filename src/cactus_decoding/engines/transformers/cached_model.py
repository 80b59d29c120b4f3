"""A Hugging Face causal language model with a cache that can be rolled back."""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from cactus_decoding.core.models.base import BaseCachedModel, Forward
from cactus_decoding.core.models.recurrent import RecurrentForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cactus_decoding.engines.transformers.recorded import RecordedPasses

_READ_ON = frozenset({"bamba", "falcon_h1", "granitemoehybrid", "qwen3_next", "qwen3_5", "qwen3_5_text"})
"""Kinds whose blocks read on from a state; transformers begins those of Mamba, Jamba and others anew."""


class CachedModel(BaseCachedModel):
    def __init__(self, model: PreTrainedModel) -> None:
        check_can_roll_back(model, by_copies=True)
        super().__init__()
        self.model = model
        self.device = model.device
        self._extra_inputs: dict[str, Any] = {}  # which the first `append`, when it chooses a pass, must know
        self._state: tuple[Any, ...] = ()  # of the model when the last response began

    @property
    def name(self) -> str:
        return str(self.model.name_or_path)

    @cached_property
    def vocabulary_size(self) -> int:
        return vocabulary_size(self.model)

    @property
    def stop_token_ids(self) -> list[int] | None:
        """End-of-sequence tokens of the model's generation settings, where they name any."""
        given = self.model.generation_config.eos_token_id
        return list(given) if isinstance(given, (list, tuple)) else None if given is None else [int(given)]

    @property
    def max_length(self) -> int | None:
        """Tokens that the model's context window holds, where its configuration says."""
        return context_window(self.model)

    def use_extra_inputs(self, extra_inputs: dict[str, Any]) -> None:
        """Give further keyword arguments to each forward pass until the next `reset`: ``output_hidden_states=True``."""
        if extra_inputs == self._extra_inputs:
            return
        if self.length:
            raise ValueError(f"extra_inputs must be set while the cache is empty, but it holds {self.length} tokens")
        self._extra_inputs, self._forward = extra_inputs, None

    @property
    def outputs(self) -> Any:
        """What the last forward pass returned, where there are ``extra_inputs``; else None."""
        return getattr(self._forward, "outputs", None)

    def reset(self) -> None:
        super().reset()
        self._extra_inputs = {}

    def forget_if_changed(self) -> None:
        """Forget everything, extra inputs too, where there were some, or weights or code of the model have changed."""
        state = reading_state(self.model)
        if state != self._state or self._extra_inputs:
            self.reset()
        self._state = state

    def twin(self) -> CachedModel:
        return CachedModel(self.model)

    def _choose_forward(self) -> Forward:
        """Return an empty forward pass; the model may have changed since the last response."""
        from cactus_decoding.engines.transformers.recorded import recorded_passes

        recorded = None
        if self._state and not self._extra_inputs:
            recorded = recorded_passes(self.model, self._state)
        return general_forward(self.model, self._extra_inputs, recorded)


def check_can_roll_back(model: PreTrainedModel, *, by_copies: bool = False) -> None:
    """Raise `ValueError` for a model that cannot take part in draft-and-verify decoding.

    Copies of a recurrent state may be gone back to (``by_copies``) where a block reads on from a state.
    """
    from cactus_decoding.engines.transformers import compatibility
    from cactus_decoding.engines.transformers.forward import check_fills_cache

    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder model; allowed are decoder-only causal language models")
    if _is_recurrent(model) and not (by_copies and model.config.model_type in _READ_ON):
        raise ValueError(f"{name} keeps a recurrent state, which cannot be rolled back after a rejection")
    if not compatibility.takes_dynamic_cache(model):
        raise ValueError(f"{name} keeps a memory of its own and no cache that could be rolled back after a rejection")
    if getattr(model.config.get_text_config(decoder=True), "cross_attention_layers", None):
        raise ValueError(f"{name} has cross-attention layers, which read images and have no place in a cache of tokens")
    compatibility.check_forward(model, lambda: general_forward(model, {}))
    check_fills_cache(model)


def general_forward(
    model: PreTrainedModel, extra_inputs: dict[str, Any], recorded: RecordedPasses | None = None
) -> Forward:
    from cactus_decoding.engines.transformers.forward import GeneralForward

    forward = GeneralForward(model, extra_inputs, recorded)
    if not _is_recurrent(model):
        return forward
    if extra_inputs:
        inputs, name = ", ".join(extra_inputs), type(model).__name__
        raise ValueError(f"{name} keeps a recurrent state, and cannot be asked for {inputs} too")
    return RecurrentForward(forward)


def _is_recurrent(model: PreTrainedModel) -> bool:
    from cactus_decoding.engines.transformers import compatibility

    return compatibility.keeps_recurrent_state(model)


def context_window(model: PreTrainedModel) -> int | None:
    """Return how many tokens a model's positions reach, or None where its configuration does not say."""
    window = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return window if isinstance(window, int) else None


def vocabulary_size(model: PreTrainedModel) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


_SCALARS = frozenset({bool, int, float, str, type(None)})
_NUM_OF_EVERY_MODULE = len(vars(nn.Module()))
"""What a module holds before its own attributes: dictionaries of parameters, modules and hooks."""


def reading_state(model: PreTrainedModel) -> tuple[Any, ...]:
    """Return what shows whether a model would read a text as it did before.

    That is where its tensors are and how often they were written to, its modules' attributes, hooks and classes'
    ``forward``, and the registered attentions and masks. What is written through a tensor's ``data`` is not seen.
    """
    from cactus_decoding.engines.transformers.compatibility import registered_attentions

    tensors = [(id(each), _place(each)) for each in (*model.parameters(), *model.buffers())]
    code: list[Any] = [*_global_forward_hooks, *_global_forward_pre_hooks, *map(id, registered_attentions())]
    for module in model.modules():
        code += (module.training, id(type(module).forward), *module._forward_hooks, *module._forward_pre_hooks)
    attributes: list[Any] = []
    for holder in (model.config, *model.modules()):
        own = islice(vars(holder).values(), _NUM_OF_EVERY_MODULE if isinstance(holder, nn.Module) else 0, None)
        attributes += (type(holder), *(value if type(value) in _SCALARS else id(value) for value in own))
    autocast = torch.is_autocast_enabled(model.device.type)
    return (*tensors, *attributes, *code, autocast, torch.get_float32_matmul_precision())


def _place(tensor: torch.Tensor) -> tuple[int, ...]:
    plain = type(tensor) in (nn.Parameter, torch.Tensor)  # others may have no memory of their own
    return (tensor.data_ptr() if plain else 0, 0 if tensor.is_inference() else tensor._version)
