"""A target's first layers as its draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cactus_decoding.core.declared import check_fields
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import Drafter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class EarlyExit:
    """Drafts with the first layers of the target, followed by its last normalisation and its head.

    Nothing is trained, and no weight is stored twice. The draft keeps keys and values of its own, so the target reads
    accepted tokens again with all of its layers. `Skip` leaves out any layers, or parts of them.

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

    def drafter(self, target: PreTrainedModel, prompts: Callable[[], list[list[int]]] | None = None) -> Drafter:
        """Return the drafter of a target; raises what `of` does."""
        return ModelDrafter(self.of(target))

    def of(self, target: PreTrainedModel) -> PreTrainedModel:
        """Return a model of the target's first layers; all of its tensors are the target's own.

        Raises `ValueError` where the target has no list of layers, or no more layers than that.
        """
        from cactus_decoding.engines.transformers.sublayers import first_layers, layers_of

        total = len(layers_of(target))
        if self.layers >= total:
            raise ValueError(f"an early exit must be before layer {total}, the last, but is at {self.layers}")
        draft = first_layers(target, self.layers)
        draft.name_or_path = spell("early_exit", self)
        return draft
