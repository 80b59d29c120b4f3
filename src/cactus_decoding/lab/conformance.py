"""How cactus-conform, a distribution of its own, asks the engines of this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cactus_conform.engine import CUTS, DRAFTS, LETTERS, LOOK_UP, Engine, EngineAnswer, Query
from cactus_conform.engines.llama_cpp import LlamaCppEngine
from cactus_conform.models import text_of, write_models


class CactusEngine(Engine):
    """`cactus_decoding.generate` over the tiny models, in float32; ``settings`` are fields of every `Request`."""

    supports = frozenset({*CUTS, "stop_token_ids", "cancels", "repeats"})
    drafts: Sequence[str] = (*DRAFTS, LOOK_UP)

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        import torch
        from transformers.utils import logging

        from cactus_decoding import __version__
        from cactus_decoding.core.request import Request

        Request.from_dict(dict(settings or {}))
        torch.set_num_threads(1)
        logging.disable_progress_bar()
        self._settings, self._pairs = dict(settings or {}), dict[str, Any]()
        said = "".join(f", {name}={value}" for name, value in self._settings.items())
        self.name = f"cactus-decoding {__version__}{said}"
        if self._settings.get("verification") == "coupled":
            self.supports |= {"coupled"}

    def _pair(self, draft: str) -> Any:
        from cactus_decoding import load_pair

        if draft not in self._pairs:
            with TemporaryDirectory() as folder:
                models = write_models(Path(folder))
                drafter = draft if draft == LOOK_UP else models / draft
                self._pairs[draft] = load_pair(models / "target", drafter, dtype="float32", device="cpu")
        return self._pairs[draft]

    def one(self, query: Query) -> EngineAnswer:
        from cactus_decoding.core.generate import stream
        from cactus_decoding.core.request import Request
        from cactus_decoding.core.types import Fate

        sampling, pair = query.sampling, self._pair(query.sampling.draft)
        asked = sampling.named() | {
            "num_speculative_tokens": sampling.num_speculative_tokens,
            "max_new_tokens": sampling.max_tokens,
            "stop": [LETTERS[token - 1] for token in sampling.stop_token_ids],
            "seed": query.seed,
        }
        request = Request.from_dict(asked | self._settings)
        if sampling.cancels:
            given_up = stream(pair, text_of((*query.prompt, 9, 8)), request)
            next(given_up)
            given_up.close()
        response = stream(pair, text_of(query.prompt), request)
        for _ in response:
            pass
        kept = sum(fate in {Fate.ACCEPTED, Fate.RELAXED} for fate in response.fates)  # none after the end
        return EngineAnswer(tuple(response.token_ids), None, kept)


class CactusLlamaEngine(LlamaCppEngine):
    """Completions of `CactusLlama`, with draft models and with prompt look-up."""

    drafts: Sequence[str] = (*DRAFTS, LOOK_UP)

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        self.name = self.name.replace("Llama", "CactusLlama")

    def open(self, draft: str, proposals: int) -> Any:
        from cactus_decoding.engines.llama_cpp.llama import CactusLlama

        file = draft if draft == LOOK_UP else f"{self.models / draft}.gguf:cache=float32"
        target = str(self.models / "target.gguf")
        return CactusLlama(target, draft=file, num_speculative_tokens=proposals, **self.options)

    def prompt(self, token_ids: Sequence[int]) -> Any:
        return list(token_ids)
