"""Files that a thread loads while others are at work: llama.cpp leaves Python to them meanwhile."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.compatibility import check_version
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile

_LOADER, _BEGUN = ThreadPoolExecutor(1), dict[tuple[str, int], Future[int]]()


def begin_to_load(file: GgufFile) -> None:
    """Load a file's weights for the next `load_weights` of it, which hears of what fails."""
    asked = str(file.path), file.settings.gpu_layers
    _BEGUN[asked] = _LOADER.submit(_load, *asked)


def load_weights(path: str, gpu_layers: int) -> int:
    """Return the handle of a file's model; raise `ValueError` with llama.cpp's reason."""
    begun = _BEGUN.pop((path, gpu_layers), None)
    return _load(path, gpu_layers) if begun is None else begun.result()


def _load(path: str, gpu_layers: int) -> int:
    check_version()
    return library.load_model(path, gpu_layers, False)
