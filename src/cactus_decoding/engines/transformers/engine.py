"""transformers as an engine: what reads folders and names on the hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cactus_decoding.core.models.loading import Engine

if TYPE_CHECKING:
    import torch

    from cactus_decoding.core.models.base import BaseCachedModel
    from cactus_decoding.core.models.tokenizers import Tokenizer


class TransformersEngine(Engine):
    suffix = ""
    rows_on_cpu = False

    @property
    def drafters(self) -> Mapping[str, type[Any]]:
        from cactus_decoding.engines.transformers.skip import EarlyExit, Skip

        return {"early_exit": EarlyExit, "skip": Skip}

    def check_name(self, role: str, name: str | Path, words: Iterable[str]) -> None:
        from cactus_decoding.engines.transformers.loading import check_folder_or_hub_name

        check_folder_or_hub_name(role, name, words)

    def only_cached(self, role: str, name: str | Path) -> bool:
        """Ask the hub once."""
        from cactus_decoding.engines.transformers.loading import only_cached

        return only_cached(role, name)

    def load_tokenizer(self, role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
        from cactus_decoding.engines.transformers.loading import load_tokenizer

        return load_tokenizer(role, name, local=local)

    def load_cached(
        self,
        role: str,
        name: str | Path,
        dtype: str | torch.dtype,
        device: torch.device,
        *,
        local: bool = False,
    ) -> BaseCachedModel:
        from cactus_decoding.engines.transformers.cached_model import CachedModel
        from cactus_decoding.engines.transformers.loading import load_model

        return CachedModel(load_model(role, name, dtype, device, local=local))

    def with_cache(self, model: Any) -> BaseCachedModel:
        from cactus_decoding.engines.transformers.cached_model import CachedModel

        return CachedModel(model)
