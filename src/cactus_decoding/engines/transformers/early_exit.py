"""The first layers of a target as its draft."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from torch import nn

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import Drafter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class EarlyExit:
    """Drafts with the first layers of the target, followed by its last normalisation and its head.

    Nothing is trained, and no weight is stored twice. The draft keeps keys and values of its own, so the target reads
    accepted tokens again with all of its layers.

    Example:
        >>> EarlyExit(3).layers
        3
    """

    layers: Annotated[int, Setting("of the target, from the first", ge=1)]

    def __post_init__(self) -> None:
        check_fields(self)

    def drafter(self, target: PreTrainedModel) -> Drafter:
        return ModelDrafter(self.of(target))

    def of(self, target: PreTrainedModel) -> PreTrainedModel:
        """Return a model of the target's first layers, its last norm and its head; all tensors are the target's own.

        Raises:
            ValueError: for a model without a list of layers, such as a GGUF file's, or with no more than these.
        """
        layers = getattr(getattr(target, "base_model", None), "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ValueError(f"{type(target).__name__} has no list of layers to leave some out of")
        if self.layers >= len(layers):
            raise ValueError(f"an early exit must be before layer {len(layers)}, the last, but is at {self.layers}")
        shared = {id(tensor): tensor for tensor in (*target.parameters(), *target.buffers())}
        draft: PreTrainedModel = copy.deepcopy(target, shared)
        draft.config.num_hidden_layers = self.layers
        types = getattr(draft.config, "layer_types", None)
        if types and len(types) > self.layers:  # some configurations work them out from the number of layers
            draft.config.layer_types = types[: self.layers]
        draft.base_model.layers = draft.base_model.layers[: self.layers]
        draft.name_or_path = spell("early_exit", self)
        return draft
