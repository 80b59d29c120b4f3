"""What a GGUF file holds: weights and vocabulary, checked to be those of a model that can forget tokens."""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

from cactus_decoding.models.llama_cpp.library import captured_errors, library, reason
from cactus_decoding.models.llama_cpp.part import VocabularyPart


class GgufModel:
    """A file that llama.cpp has opened; several caches may share it.

    Args:
        role: whose file it is, such as ``target``.
        path: of the file, or of the first of several.
        handle: llama.cpp's pointer to the model, which somebody else frees.

    Attributes:
        handle: llama.cpp's pointer to the model.
        vocab: likewise to the vocabulary.
        name: the file's path.
        own_size: how many tokens the file has.
        part: which these are, where they are a part of the vocabulary.
        vocabulary_size: the width of the logits.

    Raises:
        ValueError: for a model without a cache that can be rolled back.
    """

    def __init__(self, role: str, path: str | Path, handle: int) -> None:
        lib = library()
        self.handle, self.name = handle, str(path)
        self.vocab = lib.llama_model_get_vocab(handle)
        self.own_size = int(lib.llama_vocab_n_tokens(self.vocab))
        self.part = VocabularyPart.beside(Path(path), self.own_size)
        self.vocabulary_size = self.own_size if self.part is None else self.part.vocabulary_size
        if obstacle := self._obstacle(lib):
            raise ValueError(
                f"cannot load the {role} {str(path)!r}: {self.metadata('general.architecture')} {obstacle}"
            )

    @classmethod
    def load(cls, role: str, path: Path, *, gpu_layers: int = 0, vocab_only: bool = False) -> GgufModel:
        """Open a file.

        Args:
            role: as for the class, as is the next.
            path: of the file.
            gpu_layers: layers that a GPU holds; -1 for all.
            vocab_only: leave the weights where they are.

        Raises:
            ValueError: for a file that is none or not whole, and for a model without a cache that can be rolled back.
        """
        lib = library()
        params = lib.llama_model_default_params()
        params.n_gpu_layers, params.vocab_only = gpu_layers, vocab_only
        with captured_errors() as errors:
            handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise ValueError(f"cannot load the {role} {str(path)!r}: {reason(errors)}")
        try:
            model = cls(role, path, handle)
        except BaseException:
            _free(handle)
            raise
        finalize(model, _free, handle)
        return model

    @cached_property
    def stop_token_ids(self) -> list[int]:
        """Every token that ends a generation, by what the vocabulary says."""
        lib = library()
        return [i for i in range(self.own_size) if lib.llama_vocab_is_eog(self.vocab, i)]

    @property
    def trained_length(self) -> int:
        """Tokens of the longest texts that the model was trained on."""
        return int(library().llama_model_n_ctx_train(self.handle))

    def metadata(self, key: str) -> str:
        """Return what the file says of itself under a key; nothing where it does not."""
        lib, buffer = library(), ctypes.create_string_buffer(0)
        length = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, 0)
        if length < 0:
            return ""
        buffer = ctypes.create_string_buffer(length + 1)
        lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, length + 1)
        return buffer.value.decode(errors="replace")

    def _obstacle(self, lib: Any) -> str | None:
        """Say why a model cannot take part in draft-and-verify decoding."""
        if lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle):
            return "keeps a recurrent state, which cannot be rolled back after a rejection"
        if lib.llama_model_has_encoder(self.handle) or not lib.llama_model_has_decoder(self.handle):
            return "has an encoder; allowed are decoder-only causal language models"
        if lib.llama_model_is_diffusion(self.handle):
            return "writes all of a text at once, and no token after another"
        return None


def _free(handle: int) -> None:
    with captured_errors():
        library().llama_model_free(handle)
