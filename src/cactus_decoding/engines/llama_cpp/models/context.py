"""llama.cpp's context: a cache for one text or several, which is fed in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.settings import USUAL_CONTEXT_SIZE, LlamaCppSettings
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights


class Portion(NamedTuple):
    """Tokens that one of a context's texts is to be read on by."""

    sequence: int  # which text, from 0
    token_ids: np.ndarray[Any, Any]
    start: int  # how many tokens of it are cached
    rows: int  # how many of the last ones to return logits after


class Context:
    """llama.cpp's context: a cache for some texts, and the memory of a batch.

    A recurrent state can take back ``max_undo`` of the last tokens of a batch. A tree may have as many leaves as there
    are ``branches``; 0 where no trees can be read.
    """

    def __init__(self, model: GgufWeights, handle: int, branches: int = 0) -> None:
        memory, self.size, self.batch_size, sequences, self.threads, self.max_undo = library.room(handle)
        if not memory:
            raise ValueError(f"{model.name!r} is of a kind that keeps no cache of tokens")
        self.handle, self._memory, self._vocabulary_size = handle, memory, model.vocabulary_size
        self._sequences = np.arange(sequences, dtype=np.int32)
        self._batch, self.last, self.branches = library.Batch(self.batch_size), [0] * sequences, branches

    @classmethod
    def make(
        cls, model: GgufWeights, settings: LlamaCppSettings, sequences: int = 1, max_undo: int = 0, branches: int = 0
    ) -> Context:
        """Make an empty one for some texts; raise `ValueError` where llama.cpp cannot, as for lack of memory."""
        trained = model.trained_length
        size = settings.context_size or min(trained, USUAL_CONTEXT_SIZE)
        if size > trained:
            raise ValueError(f"{model.name!r} was trained for {trained} tokens, but context_size is {size}")
        threads = settings.threads or torch.get_num_threads()
        try:
            handle = library.make_context(model.handle, size, sequences, threads, settings.cache, max_undo, branches)
        except ValueError as error:
            given = f"{size * sequences} tokens for {model.name!r}"
            raise ValueError(f"cannot make a context of {given}: {error}") from None
        try:
            context = cls(model, handle, branches)
        except BaseException:
            _free(handle, model)
            raise
        context.size = size  # llama.cpp rounds up
        # the context needs the model's weights until it is gone itself
        finalize(context, _free, handle, model)
        return context

    def use_threads(self, count: int) -> None:
        library.set_threads(self.handle, count)
        self.threads = count

    def forget_from(self, sequence: int, length: int) -> bool:
        """Forget all but the first tokens of a text; return whether that could be done."""
        return library.forget(self._memory, sequence, length)

    def num_held(self, sequence: int) -> int:
        """Return how many tokens of a text are cached."""
        return library.num_held(self._memory, sequence)

    def save(self, sequence: int, *, partial: bool = False) -> np.ndarray[Any, Any]:
        return library.save_state(self.handle, sequence, partial)

    def restore(self, sequence: int, saved: np.ndarray[Any, Any], *, partial: bool = False) -> None:
        self.last[sequence] = 0  # what could be taken back is not in the copy
        library.restore_state(self.handle, sequence, saved, partial)

    def read(self, portions: Sequence[Portion]) -> Tensor:
        """Return logits after the last tokens of each portion, one below the other; the next call overwrites them."""
        count, batch = 0, self._batch
        for sequence, token_ids, start, rows in portions:
            begin, count = count, count + len(token_ids)
            self.last[sequence] = len(token_ids)
            batch.tokens[begin:count] = token_ids
            batch.positions[begin:count] = np.arange(start, start + count - begin)
            batch.wanted[begin : count - rows], batch.wanted[count - rows : count] = 0, 1
            batch.sequence_of[begin:count] = self._sequences[sequence:].ctypes.data
        return self._rows(
            count, sum(each.rows for each in portions), " and ".join(str(each.start) for each in portions)
        )

    def read_tree(
        self, token_ids: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], lies_on: np.ndarray[Any, Any], rows: int
    ) -> Tensor:
        """Return logits after the last tokens of a tree, none of which is cached; the next call overwrites them.

        Args:
            token_ids: of the tree, which follows the only text; parents come before their children.
            positions: of each token, from the first one after the text on.
            lies_on: whether a token is on the path to a leaf, ``[leaves, tokens]``; at most ``branches`` leaves.
            rows: how many tokens to return logits after.
        """
        count, batch, branches = len(token_ids), self._batch, self._sequences[1 : 1 + len(lies_on)]
        batch.tokens[:count], batch.positions[:count] = token_ids, positions
        batch.wanted[: count - rows], batch.wanted[count - rows : count] = 0, 1
        branches_of = [branches[each] for each in lies_on.T]  # which have to stay in memory
        try:
            batch.num_sequences[:count] = [len(each) for each in branches_of]
            batch.sequence_of[:count] = [each.ctypes.data for each in branches_of]
            for branch in branches.tolist():
                library.branch_off(self._memory, branch)
            return self._rows(count, rows, "a tree's text")
        finally:
            batch.num_sequences[:count] = 1
            for branch in branches.tolist():
                library.forget(self._memory, branch, -1)

    def _rows(self, count: int, rows: int, starts: str) -> Tensor:
        if wrong := self._batch.read(self.handle, count):
            raise RuntimeError(f"llama.cpp could not read {count} tokens after {starts} {wrong}")
        if not rows:
            return torch.empty(0, self._vocabulary_size)
        return torch.from_numpy(library.logits(self.handle, rows, self._vocabulary_size))


def _free(handle: int, model: GgufWeights) -> None:
    library.free_context(handle)
