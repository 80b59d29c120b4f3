"""Proposals from a small language model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from cactus_decoding.models import CachedModel, vocabulary_size
from cactus_decoding.sampling import check_drawn, draw
from cactus_decoding.types import LogitsToProbs, Proposal


class ModelDrafter:
    """Samples proposals one after another from a draft model, with the request's own sampling parameters.

    Args:
        model: a causal language model with the target's tokens.
        vocabulary: width of the target's logits; the draft's are cut or padded to it where the two models pad their
            vocabularies differently. The draft's own width, if None.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int | None = None) -> None:
        """Wrap a draft model."""
        self._model = CachedModel(model)
        self._vocabulary = vocabulary
        self._last: list[int] = []

    @property
    def vocabulary(self) -> int:
        """Width of the proposed rows."""
        return vocabulary_size(self._model.model) if self._vocabulary is None else self._vocabulary

    @property
    def max_length(self) -> int | None:
        """Tokens that the draft's context window holds, where its configuration says."""
        return self._model.max_length

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Draw ``limit`` tokens, fewer at the end of the draft's context window, none after a token it lacks."""
        if self._model.max_length is not None:
            limit = min(limit, self._model.max_length - len(token_ids))
        if limit <= 0 or max(token_ids) >= vocabulary_size(self._model.model):
            return Proposal([], None)
        self._follow(token_ids)
        uniforms = torch.rand(limit, dtype=torch.float64, generator=generator, device=self._model.device)
        sequence, rows = list(token_ids), []
        for i in range(limit):
            logits = self._fit(self._model.append(sequence[self._model.length :], rows=1))
            rows.append(to_probs(logits, sequence))
            token = int(draw(rows[-1], uniforms[i : i + 1]))
            check_drawn("draft", token, rows[-1], len(sequence))
            sequence.append(token)
        self._last = sequence
        return Proposal(sequence[len(token_ids) :], torch.cat(rows))

    def _follow(self, token_ids: list[int]) -> None:
        """Roll the cache back to what it shares with the sequence; the last token is always fed again."""
        shared = 0
        for ours, theirs in zip(self._last[: self._model.length], token_ids[:-1], strict=False):
            if ours != theirs:
                break
            shared += 1
        if shared == 0:
            self._model.reset()
        else:
            self._model.rollback(shared)

    def _fit(self, logits: Tensor) -> Tensor:
        if self._vocabulary is None or logits.shape[-1] == self._vocabulary:
            return logits
        return pad(logits, (0, self._vocabulary - logits.shape[-1]), value=-torch.inf)  # a negative pad cuts
