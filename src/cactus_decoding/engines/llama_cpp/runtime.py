"""What runs under a `CactusLlama`: its weights and context in a pair, and a call's arguments as a request."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import LogitsProcessorList
from torch import Tensor

from cactus_decoding.core.loop import StoppingCriteria
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request, with_default_proposals
from cactus_decoding.core.session import Session
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.llama_cpp.answering import LlamaAnswer
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.passes import SequenceSlot
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.llama_cpp.models.weights import GgufModel
from cactus_decoding.engines.llama_cpp.pairs import load_drafter
from cactus_decoding.engines.llama_cpp.sampling import LogitBias, as_sampling_params, row_processor


class CallProcessors(LogitsProcessorList):
    """The processors of one call, and what else it asks for: the only argument that every layer hands on."""

    def __init__(
        self,
        processors: Any,
        settings: Mapping[str, Any],
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(processors)
        self.settings, self.max_tokens = dict(settings), max_tokens
        self.stop = tuple(each for each in ([stop] if isinstance(stop, str) else stop or ()) if each)
        self.cancelled: threading.Event | None = self.settings.pop("cancelled", None)
        self.choices: Sequence[str] | None = self.settings.pop("choices", None)
        self.thinking_budget: int | None = self.settings.pop("thinking_budget", None)


_RANDOM_SEED = 2**32 - 1  # ``LLAMA_DEFAULT_SEED``, with which llama.cpp draws a seed


class ScoredModel(LlamaCppModel):
    """A model that also writes all rows where llama-cpp-python looks for them, ``[positions, vocabulary]``."""

    def __init__(self, model: GgufModel, text: SequenceSlot, scores: np.ndarray[Any, Any] | None) -> None:
        super().__init__(model, text=text)
        self._scores = scores

    def read_on(self, text: list[int]) -> int:
        """Keep what was read; nothing where all rows are wanted."""
        if self._scores is None:
            return super().read_on(text)
        self._clear()
        return 0

    def append(self, token_ids: Any, rows: int, positions: Any = None, mask: Any = None) -> Tensor:
        if self._scores is None:
            return super().append(token_ids, rows, positions, mask)
        start, count = self.length, len(token_ids)
        logits = super().append(token_ids, count, positions, mask)
        self._scores[start : start + count] = logits.numpy()
        return logits[count - rows :]


class Runtime:
    """The pair of a `CactusLlama`, on the context that llama-cpp-python has made."""

    def __init__(self, llama: Any, draft: str | Path | Drafter, kept_prompts: int | str) -> None:
        self._weights = GgufModel("target", llama.model_path, llama.model)
        tokenizer = GgufTokenizer(self._weights)
        text = SequenceSlot(Context(self._weights, llama.ctx))
        target = ScoredModel(self._weights, text, llama.scores if llama._logits_all else None)
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
        prompt_ids, pair, seed = [int(token) for token in tokens], self.pair, int(llama._seed)
        limit = asked.max_tokens
        settings = llama._defaults | asked.settings | vars(as_sampling_params(*sampling))
        settings |= {"seed": None if seed < 0 or seed == _RANDOM_SEED else seed, "stop": asked.stop}
        if limit is None or limit <= 0:
            limit = max((pair.target.max_length or 0) - len(prompt_ids), 1)
        settings = with_default_proposals(settings | {"max_new_tokens": limit}, automatic=pair.chooses)
        processors = [each if isinstance(each, LogitBias) else row_processor(each) for each in asked]
        # llama-cpp-python looks for stop strings itself, in its own texts
        stop = StoppingCriteria(pair.stop_token_ids, (), pair.tokenizer, len(prompt_ids))
        reach = llama.last_n_tokens_size
        if asked.choices is not None and grammar is not None:
            raise ValueError("choices and grammar exclude each other: each says what the answer looks like")
        if asked.thinking_budget is not None and grammar is not None:
            raise ValueError("thinking_budget and grammar exclude each other: llama.cpp's grammars begin at once")
        answer = LlamaAnswer(
            pair,
            prompt_ids,
            Request.from_dict(settings),
            processors,
            penalties,
            grammar,
            choices=asked.choices,
            thinking_budget=asked.thinking_budget,
            reach=reach,
            stop=stop,
        )
        llama.choices = ()
        return self._tokens_of(answer.session, llama, asked, stopping_criteria)

    def _tokens_of(self, session: Session, llama: Any, asked: CallProcessors, stopping_criteria: Any) -> Generator[int]:
        prompt_ids, ends = session.prompt_token_ids, frozenset(self.pair.stop_token_ids)
        llama.metrics, written = session.metrics, 0
        llama.input_ids[: len(prompt_ids)] = prompt_ids
        reservation, llama.n_tokens = self.pair.reserve(), len(prompt_ids)
        try:
            self.pair.cancel_by(asked.cancelled)
            for outcome in session:
                llama.metrics, llama.choices = session.metrics, session.choices
                if llama.on_step is not None:
                    llama.on_step(session.request, outcome)
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
        finally:
            self.pair.cancel_by(None)
            reservation.active, llama._requires_eval = False, True
            llama.pass_times = self.pair.pass_times(session.request.draft_length)
