"""What the tokens of vLLM's target say, for what looks at their text."""

from __future__ import annotations

import logging
from typing import Any

from cactus_decoding.arguments.later import Tensor
from cactus_decoding.policy.protection import Protection
from cactus_decoding.policy.vocabulary import Vocabulary

logger = logging.getLogger("vllm.cactus_decoding")


def vocabulary_of(vllm_config: Any) -> Vocabulary | None:
    """Return what the target's tokens say; None if the server has no tokenizer, or one that cannot tell."""
    model = vllm_config.model_config
    try:
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model)
        return None if tokenizer is None else Vocabulary.of(tokenizer, model.get_vocab_size())
    except Exception as error:  # tokenizers are of many kinds, and one that is not needed must not end a server
        logger.warning("requests cannot protect tokens: the tokenizer does not say what tokens say: %s", error)
        return None


def protected_tokens(pattern: str, vocabulary: Vocabulary) -> Tensor:
    """Return the tokens that a pattern protects, ``[tokens]``; raise `ValueError` if there are none, or no others."""
    # masks are kept by pattern and threshold, and of thresholds there are too many
    return Protection(pattern).mask(vocabulary).nonzero().squeeze(1)
