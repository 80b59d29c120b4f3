"""llama.cpp's context: a cache for one text or several, which is fed in batches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.models.llama_cpp.library import captured_errors, library, reason
from cactus_decoding.models.llama_cpp.settings import USUAL_CONTEXT_SIZE, LlamaCppSettings
from cactus_decoding.models.llama_cpp.weights import GgufModel

_CACHE_TYPES = {"float32": 0, "float16": 1}
"""``GGML_TYPE_F32`` and ``GGML_TYPE_F16``."""


class Portion(NamedTuple):
    """Tokens that one of a context's texts is to be read on by.

    Attributes:
        sequence: which text, from 0.
        token_ids: to read.
        start: how many tokens of it are cached.
        rows: how many of the last ones to return logits after.
    """

    sequence: int
    token_ids: np.ndarray[Any, Any]
    start: int
    rows: int


class Context:
    """llama.cpp's context: a cache for some texts, and the memory of a batch.

    Args:
        model: what it reads tokens with.
        handle: llama.cpp's pointer to it, which somebody else frees.

    Attributes:
        handle: as given.
        size: tokens that it holds of each text.
        batch_size: tokens that it takes at once.
        threads: of the CPU that read a batch.

    Raises:
        ValueError: for a model that keeps no cache of tokens.
    """

    def __init__(self, model: GgufModel, handle: int) -> None:
        lib = library()
        self.handle, self._own_size, self._part = handle, model.own_size, model.part
        self.size, self.batch_size = int(lib.llama_n_ctx_seq(handle)), int(lib.llama_n_batch(handle))
        self.threads = int(lib.llama_n_threads_batch(handle))
        self._memory = lib.llama_get_memory(handle)
        if not self._memory:
            raise ValueError(f"{model.name!r} is of a kind that keeps no cache of tokens")
        self._tokens, self._positions, self._one = (np.zeros(self.batch_size, np.int32) for _ in range(3))
        self._wanted, self._one[:] = np.zeros(self.batch_size, np.int8), 1
        self._sequences = np.arange(int(lib.llama_n_seq_max(handle)), dtype=np.int32)
        self._sequence_of = np.zeros(self.batch_size, np.uintp)  # pointers to numbers of sequences
        width = 0 if self._part is None else self._part.width
        self._embeddings = np.zeros((self.batch_size, width), np.float32)
        read = {"embd": _pointer(self._embeddings, ctypes.c_float)}
        self._batch = lib.llama_batch(
            **(read if width else {"token": _pointer(self._tokens, ctypes.c_int32)}),
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._one, ctypes.c_int32),
            seq_id=_pointer(self._sequence_of, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    @classmethod
    def make(cls, model: GgufModel, settings: LlamaCppSettings, sequences: int = 1) -> Context:
        """Make an empty one for some texts; raise `ValueError` where llama.cpp cannot, as for lack of memory."""
        lib = library()
        trained = model.trained_length
        size = settings.context_size or min(trained, USUAL_CONTEXT_SIZE)
        if size > trained:
            raise ValueError(f"{model.name!r} was trained for {trained} tokens, but context_size is {size}")
        params = lib.llama_context_default_params()
        # a stream of keys and values for each text: where they lie is then what it is for one alone
        params.n_ctx, params.n_seq_max, params.kv_unified = size * sequences, sequences, False
        params.n_threads = params.n_threads_batch = settings.threads or torch.get_num_threads()
        params.type_k = params.type_v = _CACHE_TYPES[settings.cache]
        if settings.cache == "float32":
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it would round keys and values to float16
        # sliding windows keep all they have seen: what they forget could not be rolled back to
        params.swa_full = True
        with captured_errors() as errors:
            handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            raise ValueError(f"cannot make a context of {size * sequences} tokens for {model.name!r}: {reason(errors)}")
        try:
            context = cls(model, handle)
        except BaseException:
            _free(handle, model)
            raise
        context.size = size  # llama.cpp rounds up
        # the context needs the model's weights until it is gone itself
        finalize(context, _free, handle, model)
        return context

    def use_threads(self, count: int) -> None:
        """Read batches of any size with so many threads."""
        with captured_errors():  # it tells of every change
            library().llama_set_n_threads(self.handle, count, count)
        self.threads = count

    def clear(self, sequence: int) -> None:
        """Forget all of a text."""
        library().llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def forget_from(self, sequence: int, length: int) -> bool:
        """Forget all but the first tokens of a text; say whether that can be done."""
        return bool(library().llama_memory_seq_rm(self._memory, sequence, length, -1))

    def save(self, sequence: int) -> np.ndarray[Any, Any]:
        """Return a copy of all that is cached of a text."""
        lib = library()
        saved = np.empty(lib.llama_state_seq_get_size(self.handle, sequence), np.uint8)
        pointer = _pointer(saved, ctypes.c_uint8)
        return saved[: lib.llama_state_seq_get_data(self.handle, pointer, len(saved), sequence)]

    def restore(self, sequence: int, saved: np.ndarray[Any, Any]) -> None:
        """Take a copy; raise `RuntimeError` where llama.cpp does not."""
        pointer = _pointer(saved, ctypes.c_uint8)
        with captured_errors() as errors:
            taken = library().llama_state_seq_set_data(self.handle, pointer, len(saved), sequence)
        if not taken:
            raise RuntimeError(f"llama.cpp could not take {len(saved)} bytes of a saved text: {reason(errors)}")

    def read(self, portions: Sequence[Portion]) -> Tensor:
        """Return logits after the last tokens of each portion, one below the other; the next call overwrites them.

        Args:
            portions: of different texts, together at most ``batch_size`` tokens.

        Raises:
            RuntimeError: where llama.cpp cannot read them.
        """
        lib, count = library(), 0
        for sequence, token_ids, start, rows in portions:
            begin, count = count, count + len(token_ids)
            self._tokens[begin:count] = token_ids
            if self._part is not None:
                self._embeddings[begin:count] = self._part.embed(token_ids)
            self._positions[begin:count] = np.arange(start, start + count - begin)
            self._wanted[begin : count - rows], self._wanted[count - rows : count] = 0, 1
            self._sequence_of[begin:count] = self._sequences[sequence:].ctypes.data
        self._batch.n_tokens = count
        with captured_errors() as errors:
            status = lib.llama_decode(self.handle, self._batch)
        if status != 0:
            starts = " and ".join(str(each.start) for each in portions)
            raise RuntimeError(f"llama.cpp could not read {count} tokens behind {starts} ({status}): {reason(errors)}")
        rows = sum(each.rows for each in portions)
        if not rows:
            return torch.empty(0, self._own_size)
        logits = torch.from_numpy(np.ctypeslib.as_array(lib.llama_get_logits(self.handle), (rows, self._own_size)))
        return logits if self._part is None else self._part.widen(logits)


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


def _free(handle: int, model: GgufModel) -> None:
    with captured_errors():
        library().llama_free(handle)
