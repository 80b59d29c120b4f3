"""What a GGUF file holds: weights and vocabulary, checked to be those of a model that can forget tokens."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from weakref import finalize

from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.ahead import load_weights
from cactus_decoding.engines.llama_cpp.models.compatibility import check_version


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
        vocabulary_size: how many tokens the file has, which is the width of the logits.
        trained_length: tokens of the longest texts that the model was trained on.
        recurrent: whether it keeps a state that changes with each token.

    Raises:
        ValueError: for a model without a cache that can be rolled back.
    """

    def __init__(self, role: str, path: str | Path, handle: int) -> None:
        self.handle, self.name = handle, str(path)
        self.vocab, self.vocabulary_size, self.trained_length, self.recurrent = library.describe(handle)
        if obstacle := library.obstacle(handle):
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
        check_version()
        try:
            handle = library.load_model(str(path), 0, True) if vocab_only else load_weights(str(path), gpu_layers)
        except ValueError as error:
            raise ValueError(f"cannot load the {role} {str(path)!r}: {error}") from None
        try:
            model = cls(role, path, handle)
        except BaseException:
            library.free_model(handle)
            raise
        finalize(model, library.free_model, handle)
        return model

    @cached_property
    def stop_token_ids(self) -> list[int]:
        """Every token that ends a generation, by what the vocabulary says."""
        return library.end_tokens(self.vocab, self.vocabulary_size)

    def metadata(self, key: str) -> str:
        """Return what the file says of itself under a key; nothing where it does not."""
        return library.metadata(self.handle, key)
