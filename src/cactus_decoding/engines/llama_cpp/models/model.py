"""A GGUF file's model with a cache that can be rolled back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.models.base import BaseCachedModel, Forward, num_shared
from cactus_decoding.core.models.recurrent import RecurrentForward
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.library import offloads, states_go_back, system_information
from cactus_decoding.engines.llama_cpp.models.passes import BatchScheduler, SequenceSlot
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile, LlamaCppSettings
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights

_UNDONE = 8  # each is a copy of the state, of the size of which is all that a recurrent model keeps
_BRANCHES = 16  # leaves of a tree, for each of which llama.cpp keeps the memory of a row of logits
_PASS = 512  # tokens that llama.cpp computes at once anyway: between two passes a response can be cancelled
PAYS, _COPIED = 16, 8  # tokens from which on a copy takes less time than to read them, and how many are copied for one
_CHAINS = "GGUF files are read as chains, because trees do not pay with llama.cpp on a CPU: trees cannot be read"


class LlamaCppModel(BaseCachedModel):
    """Feeds a GGUF file's model token by token or in blocks, and forgets what was rejected.

    Its logits are float32 on the CPU wherever its layers are. Without ``copies`` they are llama.cpp's own memory, which
    the next `append` overwrites and which is gone with the model: that is for a draft, whose rows become probabilities
    at once. A target's are copied, because they are handed on with the step's outcome. Without a ``text`` it is the
    only one of a context by the settings. ``lenders`` returns other texts of its context that it may copy from.
    """

    model: GgufWeights  # the opened file

    def __init__(
        self,
        model: GgufWeights,
        settings: LlamaCppSettings | None = None,
        *,
        copies: bool = True,
        text: SequenceSlot | None = None,
    ) -> None:
        super().__init__()
        self.model, self.settings, self.copies = model, settings or LlamaCppSettings(), copies
        if text is None:
            branches = _BRANCHES if copies and not model.recurrent else 0
            text = SequenceSlot(Context.make(model, self.settings, max_undo=self.max_undo, branches=branches))
        self._text = text
        self.lenders: Callable[[], list[LlamaCppModel]] = list
        self.use_threads(self._text.context.threads)

    @classmethod
    def load(cls, role: str, file: GgufFile, *, copies: bool = True) -> LlamaCppModel:
        model = GgufWeights.load(role, file.path, gpu_layers=file.settings.gpu_layers)
        return cls(model, file.settings, copies=copies)

    @cached_property
    def device(self) -> torch.device:  # type: ignore[override]  # made when it is asked for
        return torch.device("cpu")

    @property
    def max_undo(self) -> int:
        """How many rejected tokens llama.cpp itself should be able to take back; a draft reads one by one."""
        from llama_cpp import __version__

        return _UNDONE if self.copies and self.model.recurrent and states_go_back(__version__) else 0

    def cancel_by(self, event: threading.Event | None) -> None:
        super().cancel_by(event)
        self._text.cancelled = event

    @property
    def on_cpu(self) -> bool:
        """Whether no layer is on a GPU, wherever its rows come out."""
        return self.settings.gpu_layers == 0 or not offloads()

    def check_reads_trees(self) -> None:
        raise ValueError(_CHAINS)

    @property
    def max_leaves(self) -> int:
        """Leaves of a tree that can be read at once, where nothing of it is kept; 1 where only chains can."""
        return max(self._text.context.branches, 1)

    @property
    def clock(self) -> Callable[[], float]:
        """What its passes are timed with; where responses share a context, one thread reads for others."""
        return time.perf_counter if self._text.shared else super().clock

    @property
    def build(self) -> str:
        """What llama.cpp says of its build and of the processor."""
        return system_information()

    def use_threads(self, count: int) -> None:
        """Compute with so many threads from now on; every context has a number of its own."""
        self._text.use_threads(count)
        self.threads, self.settings = count, replace(self.settings, threads=count)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def vocabulary_size(self) -> int:
        return self.model.vocabulary_size

    @property
    def max_length(self) -> int:
        return self._text.context.size

    @property
    def stop_token_ids(self) -> list[int]:
        return self.model.stop_token_ids

    def twin(self) -> LlamaCppModel:
        return LlamaCppModel(self.model, self.settings, copies=self.copies)

    def recall(self, text: list[int]) -> None:
        """Swap the cache for a saved text that shares more with this one, or for a copy of what another one shares."""
        if self._best_lent(text) is None:
            return super().recall(text)
        self._set_aside(num_shared(self._token_ids, text))
        # without room for it, or where llama.cpp refuses, the text is read
        with self._text.alone(), suppress(MemoryError, RuntimeError):
            if (lent := self._best_lent(text)) is None:
                return None
            state = lent.copied()
            self._clear()
            self._forward = self._choose_forward()
            self._text.restore(state)
            # less than its thread said where that has just forgotten some
            shared = min(lent.shared, self._text.num_held)
            if self._text.forget_from(shared):
                self._token_ids = text[:shared]

    def num_kept(self, text: list[int]) -> int:
        """Return how many tokens of a text's beginning need not be read again, here or by a copy."""
        lent = self._best_lent(text)
        return self.num_kept_here(text) if lent is None else lent.shared

    def num_kept_here(self, text: list[int]) -> int:
        return super().num_kept(text)

    def _best_lent(self, text: list[int]) -> _Lent | None:
        """Return which copy of another text spares most reading, the shortest of several; None where none pays."""
        lent = list[_Lent]()
        for other in self.lenders():
            lent.append(_Lent(num_shared(other._token_ids, text), -other.length, other._text.save))
            lent.extend(
                _Lent(num_shared(each.token_ids, text), -len(each.token_ids), partial(getattr, each, "state"))
                for each in other.saved
            )
        if not lent:
            return None
        best, here = max(lent, key=itemgetter(0, 1)), self.num_kept_here(text)
        return best if best.shared - here >= max(PAYS, -best.shorter // _COPIED) else None

    def _choose_forward(self) -> Forward:
        self._text.forget_from(0)
        forward = LlamaCppForward(self._text, copies=self.copies)
        return RecurrentForward(forward) if self.model.recurrent else forward


def side_by_side(models: Sequence[LlamaCppModel], count: int) -> tuple[BatchScheduler, list[tuple[LlamaCppModel, ...]]]:
    """Return models with the same weights, for responses that run at once, and the passes that read for them."""
    contexts = [Context.make(model.model, model.settings, count, model.max_undo) for model in models]
    passes = BatchScheduler(contexts)

    def place(model: LlamaCppModel, context: Context, number: int) -> LlamaCppModel:
        return LlamaCppModel(model.model, model.settings, text=SequenceSlot(context, number, passes))

    return passes, [
        tuple(place(model, context, number) for model, context in zip(models, contexts, strict=True))
        for number in range(count)
    ]


class _Lent(NamedTuple):
    """What another text shares with this one, the more the shorter it is, and what copies all of it."""

    shared: int
    shorter: int
    copied: Callable[[], np.ndarray[Any, Any]]


class LlamaCppForward:
    """Reads tokens with llama.cpp: chains, and trees of which nothing is kept."""

    def __init__(self, text: SequenceSlot, *, copies: bool) -> None:
        self._text, self._copies = text, copies and not text.shared

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens in passes of as many as llama.cpp computes at once; see `Forward.append`."""
        text, ids = self._text, token_ids.numpy()
        if start + len(ids) > text.context.size:
            raise ValueError(
                f"the context holds {text.context.size} tokens, but {start} and {len(ids)} more were to be read; "
                "set a larger context_size"
            )
        if positions is not None or mask is not None:
            return self._append_tree(ids, start, rows, positions, mask)
        read, size = list[Tensor](), min(_PASS, text.context.batch_size)
        for begin in range(0, len(ids), size):
            batch = ids[begin : begin + size]
            behind = len(ids) - begin - len(batch)
            wanted = min(max(rows - behind, 0), len(batch))
            logits = text.read(batch, start + begin, wanted)
            if wanted:
                read.append(logits.clone() if behind or self._copies else logits)
        return read[0] if len(read) == 1 else torch.cat(read)

    def _append_tree(
        self, ids: np.ndarray[Any, Any], start: int, rows: int, positions: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """Return a tree's logits; llama.cpp caches none of it, so it has to be forgotten before a chain is read."""
        if positions is None or mask is None or len(ids) > self._text.context.batch_size:
            raise ValueError(_CHAINS)
        sees, places = mask[:, start:].numpy(), positions.numpy()
        lies_on = sees[sees.sum(0) == 1]  # the rows of leaves, which no other token sees
        read = (lies_on.T @ lies_on) & (places <= places[:, None])  # what each token will see in llama.cpp
        if len(lies_on) > self._text.context.branches or not mask[:, :start].all() or not np.array_equal(read, sees):
            raise ValueError(_CHAINS)
        logits = self._text.read_tree(ids, places, lies_on, rows)
        return logits.clone() if self._copies else logits

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        if path:
            raise ValueError("GGUF files are read as chains: of a tree's tokens none can be kept by themselves")
        return prefix if prefix == length or self._text.forget_from(prefix) else 0

    def save(self, length: int) -> np.ndarray[Any, Any]:
        return self._text.save()

    def restore(self, saved: np.ndarray[Any, Any]) -> None:
        self._text.restore(saved)

    def can_undo(self, count: int) -> bool:
        """Say whether llama.cpp takes back all but the first of so many tokens; see `StatefulForward`."""
        return count - 1 <= self._text.context.max_undo > 0

    def undo(self, length: int, prefix: int) -> bool:
        """Let llama.cpp take tokens back, where all are of its last batch, which it does not check."""
        return length - prefix < self._text.last and self._text.forget_from(prefix)

    def copy_state(self) -> np.ndarray[Any, Any]:
        return self._text.save(partial=True)

    def restore_state(self, state: np.ndarray[Any, Any], length: int) -> None:
        """Take a copy of the state, and forget keys and values after it."""
        self._text.restore(state, partial=True)
        self._text.forget_from(length)
