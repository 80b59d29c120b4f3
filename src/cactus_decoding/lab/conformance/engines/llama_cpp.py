"""llama-cpp-python, its own class or this package's, as an engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cactus_decoding.core.extras import needing
from cactus_decoding.core.mistakes import check_choice
from cactus_decoding.lab.conformance.asking import CUTS, DRAFTS, LOOK_UP, PENALTIES, Answer, Engine, Query, Sampling
from cactus_decoding.lab.conformance.engines.server import answer_of
from cactus_decoding.lab.conformance.models import gbnf, text_of, write_models

_CLASSES = ("llama_cpp", "cactus")


class LlamaCppEngine(Engine):
    """Completions of `llama_cpp.Llama` with its prompt look-up, or with ``class=cactus`` of `CactusLlama` with drafts.

    Keys and values are kept in float32, so that probabilities are known to the sixth digit. ``settings`` other than
    ``class`` are passed to every completion. Raises `ValueError` where llama-cpp-python or ``gguf`` is not installed.
    """

    supports = frozenset(
        {*CUTS, *PENALTIES, "logit_bias", "letters", "stop_token_ids", "cancels", "repeats", "logprobs"}
    )
    temperature_last, penalises_prompt, ends_alike = True, False, True

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        with needing("llama-cpp needs llama-cpp-python", "llama-cpp"):
            import llama_cpp

        self._settings = dict(settings or {})
        self._class = str(self._settings.pop("class", "llama_cpp"))
        check_choice("class", self._class, _CLASSES)
        self.drafts: Sequence[str] = (LOOK_UP,) if self._class == "llama_cpp" else (*DRAFTS, LOOK_UP)
        self._folder = tempfile.TemporaryDirectory()
        write_models(Path(self._folder.name), gguf=True)
        self._models: dict[tuple[str, int], Any] = {}
        shown = "CactusLlama" if self._class == "cactus" else "Llama"
        self.name = f"llama-cpp-python {llama_cpp.__version__}, {shown}"

    def close(self) -> None:
        self._models.clear()
        self._folder.cleanup()

    def _model(self, sampling: Sampling) -> Any:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        draft, proposals = sampling.draft, sampling.num_speculative_tokens
        if (draft, proposals) in self._models:
            return self._models[draft, proposals]
        options: dict[str, Any] = {"verbose": False, "n_ctx": 64, "n_threads": 1, "n_threads_batch": 1}
        options |= {
            "type_k": llama_cpp.GGML_TYPE_F32,
            "type_v": llama_cpp.GGML_TYPE_F32,
            "flash_attn": False,
            "logits_all": True,
        }
        path = str(Path(self._folder.name, "target.gguf"))
        if self._class == "llama_cpp":
            look_up = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=proposals)
            made = llama_cpp.Llama(path, draft_model=look_up, **options)
        else:
            from cactus_decoding.engines.llama_cpp.llama import CactusLlama

            file = draft if draft == LOOK_UP else str(Path(self._folder.name, f"{draft}.gguf:cache=float32"))
            made = CactusLlama(path, draft=file, num_speculative_tokens=proposals, **options)
        self._models[draft, proposals] = made
        return made

    def one(self, query: Query) -> Answer:
        if query.sampling.cancels:
            given_up = self._completion(replace(query, prompt=(*query.prompt, 9, 8)), stream=True)
            next(given_up)
            given_up.close()
        answer = answer_of(self._completion(query))
        counted = getattr(self._model(query.sampling), "metrics", None)  # CactusLlama's
        return replace(answer, accepted=counted and counted.accepted)

    def _completion(self, query: Query, **more: Any) -> Any:
        from llama_cpp import LlamaGrammar

        sampling = query.sampling
        grammar = LlamaGrammar.from_string(gbnf(sampling.letters), verbose=False) if sampling.letters else None
        return self._model(sampling).create_completion(
            list(query.prompt) if self._class == "cactus" else text_of(query.prompt),
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
