"""All that `generate` was called with, for a folder or repository that is named as ``custom_generate``."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from cactus_decoding.engines.transformers.generate import speculative_generate

_PREPARED = {"model", "input_ids", "logits_processor", "stopping_criteria", "generation_config", "model_kwargs"}
# `generate` has these two as well, and gives a streamer the prompt
_OWN = inspect.signature(speculative_generate).parameters.keys() - _PREPARED - {"assistant_model", "streamer"}


def generate_speculatively(model: PreTrainedModel, **arguments: Any) -> Tensor | GenerateDecoderOnlyOutput:
    """Do what ``model.generate(..., custom_generate=speculative_generate)`` does, tokenizers and stop strings included.

    `generate` keeps ``tokenizer`` and ``assistant_tokenizer`` from a callable, and so cannot read stop strings next to
    one. A folder gets everything.

    Returns:
        What `speculative_generate` returns.

    Raises `TypeError` as there; `ValueError` as there, and for settings that `generate` would act on before anything is
    decoded.

    Example:
        >>> from cactus_decoding import load_pair
        >>> pair = load_pair()
        >>> inputs = pair.tokenizer("Question:", return_tensors="pt", return_token_type_ids=False)
        >>> tokens = generate_speculatively(pair.target.model, **inputs, assistant_model=pair.drafter.model,
        ...     tokenizer=pair.tokenizer, stop_strings=["."], max_new_tokens=100, do_sample=True, seed=0)
        >>> "." in pair.tokenizer.decode(tokens[0, -1:])
        True
    """
    configs = [arguments.get("generation_config"), model.generation_config]

    def setting(name: str) -> Any:
        values = [arguments.get(name), *(getattr(config, name, None) for config in configs)]
        return next((value for value in values if value is not None), None)

    if setting("token_healing"):
        raise ValueError("token_healing is not supported: heal the prompt first, by model.heal_tokens(ids, tokenizer)")
    if setting("cache_implementation") == "paged":
        raise ValueError("cache_implementation must be None or 'dynamic', but is 'paged'")
    if (stop_strings := setting("stop_strings")) is not None:
        arguments["stop_strings"] = stop_strings
    own: dict[str, Any] = {name: arguments.pop(name) for name in _OWN if name in arguments}
    if stop_strings is not None:
        arguments["stop_strings"] = None  # else `generate` asks for the tokenizer that it keeps from a callable

    def bound(*prepared: Any, **given: Any) -> Any:
        """Take what is bound: `generate` hands a callable what its signature names, and would keep the rest."""
        return speculative_generate(*prepared, **{**given, **own})

    return model.generate(**arguments, custom_generate=bound)
