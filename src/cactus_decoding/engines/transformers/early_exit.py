"""A target's first layers as its draft."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from cactus_decoding.core.declared import check_fields
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.types import Drafter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class EarlyExit:
    """Drafts with the first layers of the target, followed by its last normalisation and its head.

    Nothing is trained, and no weight is stored twice. The draft keeps keys and values of its own, so the target reads
    accepted tokens again with all of its layers.

    Attributes:
        layers: how many, at least 1 and fewer than the target has.

    Raises `ValueError` if ``layers`` is out of range.

    Example:
        >>> EarlyExit(3).layers
        3
    """

    layers: Annotated[int, Field(ge=1, description="of the target, from the first")]

    def __post_init__(self) -> None:
        check_fields(self)

    def drafter(self, target: PreTrainedModel) -> Drafter:
        """Return the drafter of a target; raises what `of` does."""
        return ModelDrafter(self.of(target))

    def of(self, target: PreTrainedModel) -> PreTrainedModel:
        """Return a model of the target's first layers; all of its tensors are the target's own.

        Raises `ValueError` where the target has no list of layers, or no more layers than that.
        """
        total = getattr(getattr(target, "config", None), "num_hidden_layers", None)  # a GGUF file's has no such thing
        if total is None or not isinstance(getattr(target.base_model, "layers", None), torch.nn.ModuleList):
            raise ValueError(f"{type(target).__name__} has no list of layers to exit early from")
        if self.layers >= total:
            raise ValueError(f"an early exit must be before layer {total}, the last, but is at {self.layers}")
        shared = {id(tensor): tensor for tensor in (*target.parameters(), *target.buffers())}
        draft: PreTrainedModel = copy.deepcopy(target, shared)
        draft.config.num_hidden_layers = self.layers
        if getattr(draft.config, "layer_types", None):
            draft.config.layer_types = draft.config.layer_types[: self.layers]
        draft.base_model.layers = draft.base_model.layers[: self.layers]
        return draft
