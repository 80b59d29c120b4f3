"""llama.cpp as an engine: what reads GGUF files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cactus_decoding.core.models.loading import ModelLoader, similar_path
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile, parse_gguf

if TYPE_CHECKING:
    import torch

    from cactus_decoding.core.models.base import BaseCachedModel
    from cactus_decoding.core.models.tokenizers import Tokenizer


class LlamaCppLoader(ModelLoader):
    suffix = ".gguf"
    rows_on_cpu = True

    def check_name(self, role: str, name: str | Path, words: Iterable[str]) -> None:
        path = _file(name).path
        if not path.is_file():
            raise ValueError(f"cannot load the {role}: there is no file {str(path)!r}{similar_path(path)}")

    def load_tokenizer(self, role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
        from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer

        return GgufTokenizer.load(role, _file(name))

    def load_cached(
        self, role: str, name: str | Path, dtype: str | torch.dtype, device: torch.device, *, local: bool = False
    ) -> BaseCachedModel:
        """Return a file's model; dtype and device are llama.cpp's to say."""
        from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel

        return LlamaCppModel.load(role, _file(name), copies=role == "target")

    def with_cache(self, model: Any) -> BaseCachedModel:
        """Raise `TypeError`: a model of llama.cpp is loaded by its file's name."""
        raise TypeError(f"a model of llama.cpp must be given as its file's name, but is {type(model).__name__}")


def _file(name: str | Path) -> GgufFile:
    file = parse_gguf(name)
    if file is None:
        raise ValueError(f"settings follow a file's name, as in model.gguf:threads=2, but the name is {str(name)!r}")
    return file
