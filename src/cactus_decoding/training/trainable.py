"""The draft of a pair, as a model that can be trained."""

from __future__ import annotations

from transformers import PreTrainedModel

from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.generation.pair import Pair


def draft_model(pair: Pair) -> PreTrainedModel:
    """Return the draft model of a pair; raise `ValueError` where there is none whose weights could be trained.

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
    return model
