"""llama-cpp-python as an engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cactus_conform.engine import CUTS, LOOK_UP, PENALTIES, Engine, EngineAnswer, Query, Sampling, needing
from cactus_conform.engines.server import answer_of
from cactus_conform.models import gbnf, text_of, write_models


class LlamaCppEngine(Engine):
    """Completions of `llama_cpp.Llama` with its prompt look-up.

    Keys and values are kept in float32, so that probabilities are known to the sixth digit. ``settings`` are passed to
    every completion. Raises `ValueError` where llama-cpp-python or ``gguf`` is not installed.
    """

    supports = frozenset(
        {*CUTS, *PENALTIES, "logit_bias", "letters", "stop_token_ids", "cancels", "repeats", "logprobs"}
    )
    drafts: Sequence[str] = (LOOK_UP,)
    temperature_last, penalises_prompt, ends_alike = True, False, True

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        with needing("llama-cpp-python"):
            import llama_cpp

        self._settings = dict(settings or {})
        self._folder = tempfile.TemporaryDirectory()
        self.models = write_models(Path(self._folder.name), gguf=True)
        self._opened: dict[tuple[str, int], Any] = {}
        self.options: dict[str, Any] = {
            "verbose": False,
            "n_ctx": 64,
            "n_threads": 1,
            "n_threads_batch": 1,
            "type_k": llama_cpp.GGML_TYPE_F32,
            "type_v": llama_cpp.GGML_TYPE_F32,
            "flash_attn": False,
            "logits_all": True,
        }
        self.name = f"llama-cpp-python {llama_cpp.__version__}, Llama"

    def close(self) -> None:
        self._opened.clear()
        self._folder.cleanup()

    def open(self, draft: str, proposals: int) -> Any:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        look_up = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=proposals)
        return Llama(str(self.models / "target.gguf"), draft_model=look_up, **self.options)

    def _model(self, sampling: Sampling) -> Any:
        asked = sampling.draft, sampling.num_speculative_tokens
        if asked not in self._opened:
            self._opened[asked] = self.open(*asked)
        return self._opened[asked]

    def one(self, query: Query) -> EngineAnswer:
        if query.sampling.cancels:
            given_up = self._completion(replace(query, prompt=(*query.prompt, 9, 8)), stream=True)
            next(given_up)
            given_up.close()
        answer = answer_of(self._completion(query))
        counted = getattr(self._model(query.sampling), "metrics", None)  # of classes that count
        return replace(answer, accepted=counted and counted.accepted)

    def _completion(self, query: Query, **more: Any) -> Any:
        from llama_cpp import LlamaGrammar

        sampling = query.sampling
        grammar = LlamaGrammar.from_string(gbnf(sampling.letters), verbose=False) if sampling.letters else None
        return self._model(sampling).create_completion(
            self.prompt(query.prompt),
            max_tokens=sampling.max_tokens,
            stop=[text_of([token]) for token in sampling.stop_token_ids],
            logprobs=1,
            **sampling.named(),
            repeat_penalty=sampling.repetition_penalty,
            **sampling.named("presence_penalty", "frequency_penalty"),
            logit_bias={str(token): bias for token, bias in sampling.logit_bias} or None,
            grammar=grammar,
            seed=query.seed,
            **self._settings | more,
        )

    def prompt(self, token_ids: Sequence[int]) -> Any:
        return text_of(token_ids)
