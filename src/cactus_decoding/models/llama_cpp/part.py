"""A GGUF draft whose output matrix has rows for a part of the vocabulary only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from cactus_decoding.arguments.later import Tensor

BESIDE = ".vocabulary.safetensors"
"""What is added to a file's name for that of the file beside it."""


class VocabularyPart:
    """Which tokens a draft proposes, and the embeddings of all that it reads.

    llama.cpp wants as many embeddings as rows of output. So both are those of the part alone, numbered anew, and what
    is read is given to it as embeddings, which lie in a file of their own beside the draft's.

    Args:
        token_ids: of the part, ``[part]``, ascending: the numbers in the whole vocabulary.
        embeddings: of the whole vocabulary, ``[vocabulary, width]`` in float16 or float32.
    """

    def __init__(self, token_ids: Tensor, embeddings: Tensor) -> None:
        self.token_ids = token_ids.long()
        self._embeddings: np.ndarray[Any, Any] = embeddings.numpy()  # the file's own memory: what is read is loaded
        self.vocabulary_size, self.width = embeddings.shape

    @classmethod
    def beside(cls, path: Path, own_size: int) -> VocabularyPart | None:
        """Return what stands beside a file with so many rows of output, if anything does.

        Raises:
            ValueError: for what does not fit the file.
        """
        file = Path(f"{path}{BESIDE}")
        if not file.exists():
            return None
        try:
            from safetensors.torch import load_file

            found = load_file(file)
            part = cls(found["token_ids"], found["embeddings"])
        except (KeyError, OSError, SafetensorError) as error:
            raise ValueError(f"{str(file)!r} says no part of a vocabulary: {error}") from None
        if len(part.token_ids) != own_size:
            raise ValueError(
                f"{str(file)!r} has {len(part.token_ids)} tokens, but {str(path)!r} has {own_size}: they belong to "
                "different drafts"
            )
        return part

    def embed(self, token_ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the embeddings of tokens, ``[tokens, width]``."""
        found: np.ndarray[Any, Any] = self._embeddings[token_ids]
        return found

    def widen(self, logits: Tensor) -> Tensor:
        """Return rows as wide as the vocabulary, minus infinity outside the part."""
        from cactus_decoding.models.partial_head import widened

        return widened(logits, self.token_ids, self.vocabulary_size)
