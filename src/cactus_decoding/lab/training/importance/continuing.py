"""Responses that a target continues alone, with random numbers of their own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.loop import StoppingCriteria, cut_at_stop
from cactus_decoding.core.models.base import BaseCachedModel, num_shared
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.llama_cpp.models.context import Context, Portion
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.transformers.cached_model import CachedModel

_MOST_TEXTS = 256  # in a context of llama.cpp, by its ``LLAMA_MAX_SEQ``


@dataclass(frozen=True)
class Branch:
    """A response to be continued: tokens of the prompt and of the response so far.

    Branches with the same seed get the same random numbers at the same distance.
    """

    token_ids: list[int]
    prompt_length: int
    seed: int


@torch.inference_mode()
def continue_alone(
    pair: Pair,
    branches: Sequence[Branch],
    sampling: SamplingParams,
    *,
    max_new_tokens: int,
    stop: Sequence[str] = (),
    batch: int = 64,
) -> list[str]:
    """Return the texts of finished responses, each drawn from the target's distribution.

    Each token is drawn by a race of exponential clocks, one for each token of the vocabulary, which come from the
    branch's seed: two branches with the same seed mostly choose the same token where their probabilities are alike,
    whatever the order of the vocabulary.
    """
    texts = [""] * len(branches)
    # those of similar length together: the shorter ones are padded
    order = sorted(range(len(branches)), key=lambda i: len(branches[i].token_ids))
    batch = min(batch, _MOST_TEXTS) if isinstance(pair.target, LlamaCppModel) else batch
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        finished = _continue(pair, [branches[i] for i in some], sampling, max_new_tokens, stop)
        for i, text in zip(some, finished, strict=True):
            texts[i] = text
    return texts


def _continue(
    pair: Pair, branches: Sequence[Branch], sampling: SamplingParams, max_new_tokens: int, stop: Sequence[str]
) -> list[str]:
    sequences = [list(branch.token_ids) for branch in branches]
    window = pair.target.max_length
    limits = [branch.prompt_length + max_new_tokens for branch in branches]
    limits = [limit if window is None else min(limit, window) for limit in limits]
    criteria = [StoppingCriteria(pair.stop_token_ids, stop, pair.tokenizer, each.prompt_length) for each in branches]
    noise = [torch.Generator().manual_seed(branch.seed) for branch in branches]

    def goes_on(i: int) -> bool:
        fresh = len(sequences[i]) == branches[i].prompt_length
        return len(sequences[i]) < limits[i] and (fresh or not criteria[i](sequences[i]))

    live = [i for i in range(len(branches)) if goes_on(i)]
    rows = None
    if live:
        reader = _reader_of(pair.target, len(live), max(limits))
        rows = reader.read([sequences[i] for i in live])
    while live:
        assert rows is not None
        for i, token in zip(live, race(sampling(rows), [noise[i] for i in live]).tolist(), strict=True):
            sequences[i].append(token)
        kept = [place for place, i in enumerate(live) if goes_on(i)]
        live = [live[place] for place in kept]
        if live:
            rows = reader.read_next([sequences[i][-1] for i in live], kept)
    texts = []
    for sequence, branch in zip(sequences, branches, strict=True):
        text = pair.tokenizer.decode(sequence[branch.prompt_length :], skip_special_tokens=True)
        texts.append(cut_at_stop(text, stop))
    return texts


def race(probs: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Return a token for each row of ``[rows, vocabulary]``: the one whose exponential clock of rate q(x) rings first.

    The minimum of exponential variables is the one of rate q(x) with a probability in proportion to q(x).
    """
    clocks = [torch.empty(probs.shape[-1]).exponential_(generator=each) for each in generators]
    return (probs.float() / torch.stack(clocks).to(probs.device)).argmax(-1)


def _reader_of(target: BaseCachedModel, texts: int, size: int) -> _Reader | _SideBySide:
    if isinstance(target, LlamaCppModel):
        return _SideBySide(target, texts, size)
    assert isinstance(target, CachedModel)
    return _Reader(target)


class _Reader:
    """Reads a batch of texts into one cache; they are padded on the left, and leave when they are finished."""

    def __init__(self, target: CachedModel) -> None:
        self._model, self._device = target.model, target.device
        self._takes_positions = "position_ids" in inspect.signature(self._model.forward).parameters
        self._keeps_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        from cactus_decoding.engines.transformers.compatibility import (
            cache_argument,
            default_cache_argument,
            empty_cache,
        )

        self._cache = empty_cache(self._model.config, record_past=False)
        self._cache_argument = cache_argument(self._model) or default_cache_argument()
        self._mask = torch.zeros(0, 0, dtype=torch.long)

    def read(self, sequences: Sequence[list[int]]) -> Tensor:
        """Return the logits after each text, ``[texts, vocabulary]``."""
        width = max(map(len, sequences))
        ids = torch.tensor([[0] * (width - len(each)) + each for each in sequences])
        self._mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in sequences])
        return self._forward(ids, (self._mask.cumsum(-1) - 1).clamp(min=0))

    def read_next(self, token_ids: list[int], kept: list[int]) -> Tensor:
        """Append a token to each text that is still there, ``kept`` of the last call, and return the logits."""
        if len(kept) < len(self._mask):
            self._mask = self._mask[kept]
            self._cache.batch_select_indices(torch.tensor(kept, device=self._device))
        self._mask = torch.cat([self._mask, torch.ones(len(kept), 1, dtype=torch.long)], dim=1)
        return self._forward(torch.tensor(token_ids).unsqueeze(1), self._mask.sum(-1, keepdim=True) - 1)

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        more = {"position_ids": positions.to(self._device)} if self._takes_positions else {}
        keep = {"logits_to_keep": 1} if self._keeps_rows else {}
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=self._mask.to(self._device),
            use_cache=True,
            **{self._cache_argument: self._cache},
            **more,
            **keep,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]


class _SideBySide:
    """Reads texts of a GGUF file in one context; how far one begins as another is copied."""

    def __init__(self, target: LlamaCppModel, texts: int, size: int) -> None:
        self._context = Context.make(target.model, replace(target.settings, context_size=size), texts)
        self._live, self._lengths = list(range(texts)), [0] * texts

    def read(self, sequences: Sequence[list[int]]) -> Tensor:
        rows, size, before = dict[int, Tensor](), self._context.batch_size, self._live[0]
        for i in sorted(self._live, key=sequences.__getitem__):  # those that begin alike follow each other
            text = np.array(sequences[i], np.int32)
            start = self._copy(before, i, min(num_shared(sequences[before], sequences[i]), len(text) - 1))
            for begin in range(start, len(text), size):
                portion = Portion(i, text[begin : begin + size], begin, int(begin + size >= len(text)))
                rows[i] = self._context.read([portion]).clone()
            before, self._lengths[i] = i, len(text)
        return torch.cat([rows[i] for i in self._live])

    def read_next(self, token_ids: list[int], kept: list[int]) -> Tensor:
        self._live = [self._live[place] for place in kept]
        portions = []
        for i, token in zip(self._live, token_ids, strict=True):
            portions.append(Portion(i, np.array([token], np.int32), self._lengths[i], 1))
            self._lengths[i] += 1
        return self._context.read(portions)

    def _copy(self, before: int, i: int, shared: int) -> int:
        """Copy the first tokens of a text that was read; return how many, which is 0 for a recurrent state."""
        if not self._lengths[before]:
            return 0
        self._context.restore(i, self._context.save(before))
        if self._context.forget_from(i, shared):
            return shared
        self._context.forget_from(i, 0)
        return 0
