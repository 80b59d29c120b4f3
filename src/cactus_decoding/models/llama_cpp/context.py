"""llama.cpp's context: a cache for one sequence, which is fed in batches."""

from __future__ import annotations

import ctypes
import threading
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.models.llama_cpp.library import captured_errors, library, reason
from cactus_decoding.models.llama_cpp.settings import USUAL_CONTEXT_SIZE, LlamaCppSettings
from cactus_decoding.models.llama_cpp.weights import GgufModel

_CACHE_TYPES = {"float32": 0, "float16": 1}
"""``GGML_TYPE_F32`` and ``GGML_TYPE_F16``."""


class Cancelled(Exception):
    """Somebody else ended the response."""


class Context:
    """llama.cpp's context: a cache for one sequence, and the memory of a batch.

    Args:
        model: what it reads tokens with.
        handle: llama.cpp's pointer to it, which somebody else frees.

    Attributes:
        handle: as given.
        size: tokens that it holds.
        batch_size: tokens that it takes at once.
        vocabulary_size: the width of its logits.
        threads: of the CPU that read a batch.
        cancelled: looked at before every batch: with it another thread ends the response.

    Raises:
        ValueError: for a model that keeps no cache of tokens.
    """

    cancelled: threading.Event | None = None

    def __init__(self, model: GgufModel, handle: int) -> None:
        lib = library()
        self.handle, self.vocabulary_size = handle, model.vocabulary_size
        self.size, self.batch_size = int(lib.llama_n_ctx(handle)), int(lib.llama_n_batch(handle))
        self.threads = int(lib.llama_n_threads_batch(handle))
        self._memory = lib.llama_get_memory(handle)
        if not self._memory:
            raise ValueError(f"{model.name!r} is of a kind that keeps no cache of tokens")
        self._tokens, self._positions = (np.zeros(self.batch_size, np.int32) for _ in range(2))
        self._wanted = np.zeros(self.batch_size, np.int8)
        self._batch = lib.llama_batch(
            token=_pointer(self._tokens, ctypes.c_int32),
            pos=_pointer(self._positions, ctypes.c_int32),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    @classmethod
    def make(cls, model: GgufModel, settings: LlamaCppSettings) -> Context:
        """Make an empty one; raise `ValueError` where llama.cpp cannot, such as for lack of memory."""
        lib = library()
        trained = model.trained_length
        size = settings.context_size or min(trained, USUAL_CONTEXT_SIZE)
        if size > trained:
            raise ValueError(f"{model.name!r} was trained for {trained} tokens, but context_size is {size}")
        params = lib.llama_context_default_params()
        params.n_ctx = size
        params.n_threads = params.n_threads_batch = settings.threads or torch.get_num_threads()
        params.type_k = params.type_v = _CACHE_TYPES[settings.cache]
        if settings.cache == "float32":
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it would round keys and values to float16
        # sliding windows keep all they have seen: what they forget could not be rolled back to
        params.swa_full = True
        with captured_errors() as errors:
            handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            raise ValueError(f"cannot make a context of {size} tokens for {model.name!r}: {reason(errors)}")
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

    def clear(self) -> None:
        """Forget everything."""
        library().llama_memory_clear(self._memory, False)

    def forget_from(self, length: int) -> bool:
        """Forget all but the first tokens; say whether that can be done."""
        return bool(library().llama_memory_seq_rm(self._memory, 0, length, -1))

    def save(self) -> np.ndarray[Any, Any]:
        """Return a copy of all that is cached."""
        lib = library()
        saved = np.empty(lib.llama_state_seq_get_size(self.handle, 0), np.uint8)
        written = lib.llama_state_seq_get_data(self.handle, _pointer(saved, ctypes.c_uint8), len(saved), 0)
        return saved[:written]

    def restore(self, saved: np.ndarray[Any, Any]) -> None:
        """Take a copy; raise `RuntimeError` where llama.cpp does not."""
        with captured_errors() as errors:
            taken = library().llama_state_seq_set_data(self.handle, _pointer(saved, ctypes.c_uint8), len(saved), 0)
        if not taken:
            raise RuntimeError(f"llama.cpp could not take {len(saved)} bytes of a saved text: {reason(errors)}")

    def read(self, token_ids: np.ndarray[Any, Any], start: int, rows: int) -> Tensor:
        """Return the logits after the last ``rows`` of at most ``batch_size`` tokens; the next call overwrites them.

        Raises:
            Cancelled: where it is; nothing is read then.
            RuntimeError: where llama.cpp cannot read them.
        """
        if self.cancelled is not None and self.cancelled.is_set():
            raise Cancelled
        lib, count = library(), len(token_ids)
        self._batch.n_tokens = count
        self._tokens[:count] = token_ids
        self._positions[:count] = np.arange(start, start + count)
        self._wanted[: count - rows], self._wanted[count - rows : count] = 0, 1
        with captured_errors() as errors:
            status = lib.llama_decode(self.handle, self._batch)
        if status != 0:
            raise RuntimeError(f"llama.cpp could not read {count} tokens behind {start} ({status}): {reason(errors)}")
        if not rows:
            return torch.empty(0, self.vocabulary_size)
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self.handle), (rows, self.vocabulary_size))
        return torch.from_numpy(logits)


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))


def _free(handle: int, model: GgufModel) -> None:
    with captured_errors():
        library().llama_free(handle)
