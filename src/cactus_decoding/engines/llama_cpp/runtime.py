"""What runs under a `CactusLlama`: its weights and context in a pair, and a call's arguments as a request."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.settings import with_default_proposals
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.llama_cpp.answering import respond
from cactus_decoding.engines.llama_cpp.calls import CallProcessors
from cactus_decoding.engines.llama_cpp.grammar import GrammarMask
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.passes import CachedText
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.llama_cpp.models.weights import GgufModel
from cactus_decoding.engines.llama_cpp.sampling import (
    LlamaSampling,
    LogitBias,
    Penalties,
    RowProcessor,
    row_processor,
    without_penalties,
)
from cactus_decoding.engines.llama_cpp.server.loading import load_drafter

_RANDOM_SEED = 2**32 - 1
"""``LLAMA_DEFAULT_SEED``, with which llama.cpp draws a seed."""


class ScoredModel(LlamaCppModel):
    """A model that also writes all rows where llama-cpp-python looks for them, ``[positions, vocabulary]``."""

    def __init__(self, model: GgufModel, text: CachedText, scores: np.ndarray[Any, Any] | None) -> None:
        super().__init__(model, text=text)
        self._scores = scores

    def read_on(self, text: list[int]) -> int:
        """Keep what was read; nothing where all rows are wanted."""
        if self._scores is None:
            return super().read_on(text)
        self._clear()
        return 0

    def append(self, token_ids: Any, rows: int, positions: Any = None, mask: Any = None) -> Tensor:
        """Feed tokens; see `BaseCachedModel.append`."""
        if self._scores is None:
            return super().append(token_ids, rows, positions, mask)
        start, count = self.length, len(token_ids)
        logits = super().append(token_ids, count, positions, mask)
        self._scores[start : start + count] = logits.numpy()
        return logits[count - rows :]


class Runtime:
    """The pair of a `CactusLlama`, on the context that llama-cpp-python has made.

    Args:
        llama: whose it is.
        draft: as for `CactusLlama`.
        kept_prompts: see `Pair`.

    Attributes:
        pair: the models.

    Raises:
        ValueError: for a model that cannot forget tokens, or what cannot draft for it.
    """

    def __init__(self, llama: Any, draft: str | Path | Drafter, kept_prompts: int | str) -> None:
        self._weights = GgufModel("target", llama.model_path, llama.model)
        tokenizer = GgufTokenizer(self._weights)
        self._text = CachedText(Context(self._weights, llama.ctx))
        target = ScoredModel(self._weights, self._text, llama.scores if llama._logits_all else None)
        self.pair = Pair(target, load_drafter(draft, target, tokenizer), tokenizer, kept_prompts=kept_prompts)

    def generate(
        self,
        llama: Any,
        tokens: Sequence[int],
        asked: CallProcessors,
        sampling: tuple[float, int, float, float],
        penalties: tuple[float, float, float],
        grammar: Any,
        stopping_criteria: Any,
    ) -> Generator[int]:
        """Return a response's tokens, for arguments of `CactusLlama.generate`, which are checked first."""
        prompt_ids, pair, start = [int(token) for token in tokens], self.pair, len(tokens)
        if not prompt_ids:
            raise ValueError("prompt must have at least one token, but has none")
        processors: list[RowProcessor] = [
            each if isinstance(each, LogitBias) else row_processor(each) for each in asked
        ]
        if not without_penalties(*penalties):
            processors.append(Penalties(start, llama.last_n_tokens_size, *penalties))
        if grammar is not None:
            processors.append(GrammarMask(self._weights, grammar, start))
        to_probs = LlamaSampling(*sampling, processors)
        settings = with_default_proposals(llama._defaults | asked.settings, automatic=pair.chooses)
        seed = None if llama._seed < 0 or llama._seed == _RANDOM_SEED else int(llama._seed)
        settings |= {"temperature": 0.0 if sampling[0] == 0 else 1.0, "seed": seed}
        request = Request.from_dict(settings)
        request.check_room(pair.target.max_length, pair.drafter.max_length, start)
        pair.check(request)
        return self._respond(llama, prompt_ids, request, to_probs, asked, stopping_criteria)

    def _respond(
        self,
        llama: Any,
        prompt_ids: list[int],
        request: Request,
        sampling: LlamaSampling,
        asked: CallProcessors,
        stopping_criteria: Any,
    ) -> Generator[int]:
        pair = self.pair
        max_length, ends = llama.n_ctx(), frozenset(pair.stop_token_ids)
        if asked.max_tokens is not None and asked.max_tokens > 0:
            max_length = min(max_length, len(prompt_ids) + asked.max_tokens)
        outcomes = respond(pair, prompt_ids, request, sampling, max_length, lambda token_ids: token_ids[-1] in ends)
        llama.metrics, written = Metrics(), 0
        llama.input_ids[: len(prompt_ids)] = prompt_ids
        reservation, llama.n_tokens = pair.reserve(), len(prompt_ids)
        self._text.cancelled = asked.cancelled
        try:
            began = time.perf_counter()
            for outcome in outcomes:
                llama.metrics += replace(Metrics.of(outcome), seconds=time.perf_counter() - began)
                if llama.on_step is not None:
                    llama.on_step(request, outcome)
                for i, token in enumerate(outcome.token_ids):
                    if stopping_criteria is not None and stopping_criteria(
                        llama._input_ids, outcome.rows.logits[i].numpy()
                    ):
                        return
                    written += token not in ends
                    llama.usage = {
                        "prompt_tokens": len(prompt_ids),
                        "completion_tokens": written,
                        "total_tokens": len(prompt_ids) + written,
                    }
                    yield token
                    llama.input_ids[llama.n_tokens] = token
                    llama.n_tokens += 1
                began = time.perf_counter()
        finally:
            reservation.active, llama._requires_eval = False, True
            llama.pass_times = pair.pass_times(request.draft_length)
