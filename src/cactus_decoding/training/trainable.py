"""The draft of a pair, as a model that can be trained."""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn
from transformers import PreTrainedModel

from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.generation.pair import Pair


def draft_model(pair: Pair) -> PreTrainedModel:
    """Return the draft model of a pair; raise `ValueError` where there is none whose weights could be trained.

    Weights in which the target's are stored, such as those of an early exit, are no draft's own: training them would
    change the target.

    Example:
        >>> from cactus_decoding import load_pair
        >>> draft_model(load_pair("bundled", "ngram"))
        Traceback (most recent call last):
        ValueError: a draft that can be trained is a model of transformers, but this one is a NgramDrafter
    """
    model = pair.drafter.model if isinstance(pair.drafter, ModelDrafter) else pair.drafter
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"a draft that can be trained is a model of transformers, but this one is a {type(model).__name__}"
        )
    target = pair.target.model
    if isinstance(target, nn.Module):
        theirs = {_storage(each) for each in chain(target.parameters(), target.buffers())} - {0}
        if any(_storage(each) in theirs for each in model.parameters()):
            raise ValueError(
                "a draft that can be trained has weights of its own, but this one's are the target's, which training "
                "would change"
            )
    return model


def _storage(tensor: Tensor) -> int:
    """Return where a tensor is stored; 0 if nowhere."""
    return tensor.untyped_storage().data_ptr()
