"""A draft whose passes over one token are replayed from a CUDA graph, which saves what launching kernels costs.

transformers' `StaticCache` keeps keys and values in places that do not move, and how many there are on the device. On
a CPU the same passes run without a graph, which is how they are tested where there is no GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, StaticCache

from cactus_decoding.core.models.base import Forward
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.compatibility import cache_argument

_WARM_UPS = 3


class GraphedForward(Forward):
    """Reads tokens into a static cache; chains only.

    Raises `ValueError` where transformers' static cache does not know its length on the device.
    """

    def __init__(self, model: PreTrainedModel, room: int) -> None:
        self._model, self._device = model, model.device
        self._cache = StaticCache(config=model.config, max_cache_len=room)
        if not all(isinstance(getattr(layer, "cumulative_length", None), Tensor) for layer in self._cache.layers):
            raise ValueError("this version's StaticCache does not keep its length on the device: newer ones do")
        self._named: dict[str, Any] = {str(cache_argument(model)): self._cache, "use_cache": True}
        self._token, self._place = (torch.zeros(1, 1, dtype=torch.long, device=self._device) for _ in range(2))
        self._graph: Any = None
        self._logits: Tensor | None = None

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens; see `Forward.append`. Raise `ValueError` for trees."""
        if positions is not None or mask is not None:
            raise ValueError("a graphed draft reads chains, no trees of tokens")
        if len(token_ids) > 1 or not start:
            self._set_length(start)
            places = torch.arange(start, start + len(token_ids), device=self._device)[None]
            output = self._model(
                input_ids=token_ids[None], position_ids=places, logits_to_keep=max(rows, 1), **self._named
            )
            return output.logits[0, -rows:]  # type: ignore[no-any-return]
        self._token.copy_(token_ids[None])
        self._place.fill_(start)
        if self._device.type == "cuda" and self._graph is None:
            self._capture(start)
        self._set_length(start)
        if self._graph is None:
            return self._pass()
        self._graph.replay()
        assert self._logits is not None
        return self._logits.clone()

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Keep a prefix: what stands after it is not seen, and written over. Raise `ValueError` for a path."""
        if path:
            raise ValueError("a graphed draft reads chains, no trees of tokens")
        return prefix

    def save(self, length: int) -> Any:
        """Raise `ValueError`: copies of texts are not kept."""
        raise ValueError("a graphed draft keeps no copies: give kept_prompts=0 or 1")

    restore = save

    def _pass(self) -> Tensor:
        output = self._model(input_ids=self._token, position_ids=self._place, logits_to_keep=1, **self._named)
        return output.logits[0]  # type: ignore[no-any-return]

    def _capture(self, start: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._set_length(start)
                self._pass()
        torch.cuda.current_stream().wait_stream(stream)
        self._set_length(start)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self._pass()
        self._graph = graph

    def _set_length(self, length: int) -> None:
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(length)  # type: ignore[attr-defined]


class GraphedModel(CachedModel):
    """A model with one such pass, which all its responses use in turn; ``room`` is for so many tokens."""

    def __init__(self, model: PreTrainedModel, room: int = 1024) -> None:
        super().__init__(model)
        with torch.inference_mode():
            self._graphed = GraphedForward(model, room)

    def _choose_forward(self) -> Forward:
        return self._graphed
