"""What a GGUF file holds: weights and vocabulary, checked to be those of a model that can forget tokens."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from weakref import finalize

from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.compatibility import check_llama_cpp
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile

_LOADER = ThreadPoolExecutor(1)
_BEGUN: dict[tuple[str, int], Future[int]] = {}  # handles by path and layers on the GPU


def begin_to_load(file: GgufFile) -> None:
    """Load a file's weights for the next `GgufWeights.load` of it, which hears of what fails."""
    asked = str(file.path), file.settings.gpu_layers
    _BEGUN[asked] = _LOADER.submit(_load, *asked)


def _load(path: str, gpu_layers: int) -> int:
    check_llama_cpp()
    return library.load_handle(path, gpu_layers, False)


class GgufWeights:
    """An opened GGUF file; whoever constructs it owns the handle."""

    def __init__(self, role: str, path: str | Path, handle: int) -> None:
        self.handle, self.name = handle, str(path)
        self.vocab, self.vocabulary_size, self.trained_length, self.recurrent = library.describe(handle)
        if obstacle := library.obstacle(handle):
            raise ValueError(
                f"cannot load the {role} {str(path)!r}: {self.metadata('general.architecture')} {obstacle}"
            )

    @classmethod
    def load(cls, role: str, path: Path, *, gpu_layers: int = 0, vocab_only: bool = False) -> GgufWeights:
        """Open a file, or take over what `begin_to_load` began; it is closed with the object.

        A `ValueError` says why it cannot be opened, and calls it the ``role``.
        """
        check_llama_cpp()
        begun = None if vocab_only else _BEGUN.pop((str(path), gpu_layers), None)
        try:
            handle = begun.result() if begun else library.load_handle(str(path), gpu_layers, vocab_only)
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
        return library.end_tokens(self.vocab, self.vocabulary_size)

    def metadata(self, key: str) -> str:
        return library.metadata(self.handle, key)
