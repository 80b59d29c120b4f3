"""What runs under a `CactusLlama`: its weights and context in a pair, and a call's arguments as a response."""

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
from cactus_decoding.core.response import Response
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.llama_cpp.answering import begin_gguf
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.passes import SequenceSlot
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights
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

    def __init__(self, model: GgufWeights, text: SequenceSlot, scores: np.ndarray[Any, Any] | None) -> None:
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


def pair_of(llama: Any, draft: str | Path | Drafter, kept_prompts: int | str) -> Pair:
    """Return the pair of a `CactusLlama`, on the context that llama-cpp-python has made."""
    weights = GgufWeights("target", llama.model_path, llama.model)
    tokenizer = GgufTokenizer(weights)
    text = SequenceSlot(Context(weights, llama.ctx))
    target = ScoredModel(weights, text, llama.scores if llama._logits_all else None)
    return Pair(target, load_drafter(draft, target, tokenizer), tokenizer, kept_prompts=kept_prompts)


def begin_call(
    pair: Pair,
    llama: Any,
    tokens: Sequence[int],
    asked: CallProcessors,
    sampling: tuple[float, int, float, float],
    penalties: tuple[float, float, float],
    grammar: Any,
) -> Response:
    """Return the response to a call, for arguments of `CactusLlama.generate`."""
    prompt_ids, seed, limit = [int(token) for token in tokens], int(llama._seed), asked.max_tokens
    settings = llama._defaults | asked.settings | vars(as_sampling_params(*sampling))
    settings |= {"seed": None if seed < 0 or seed == _RANDOM_SEED else seed, "stop": asked.stop}
    if limit is None or limit <= 0:
        limit = max((pair.target.max_length or 0) - len(prompt_ids), 1)
    settings = with_default_proposals(settings | {"max_new_tokens": limit}, automatic=pair.chooses)
    if asked.choices is not None and grammar is not None:
        raise ValueError("choices and grammar exclude each other: each says what the answer looks like")
    if asked.thinking_budget is not None and grammar is not None:
        raise ValueError("thinking_budget and grammar exclude each other: llama.cpp's grammars begin at once")
    return begin_gguf(
        pair,
        Request.from_dict(settings),
        prompt_ids,
        [each if isinstance(each, LogitBias) else row_processor(each) for each in asked],
        penalties,
        grammar,
        reach=llama.last_n_tokens_size,
        # llama-cpp-python looks for stop strings itself, in its own texts
        stop=StoppingCriteria(pair.stop_token_ids, (), pair.tokenizer, len(prompt_ids)),
        choices=asked.choices,
        thinking_budget=asked.thinking_budget,
        cancelled=asked.cancelled,
    )


def generated_tokens(response: Response, llama: Any, stopping_criteria: Any) -> Generator[int]:
    """Yield a response's tokens, and keep the attributes of a `CactusLlama` up to date."""
    prompt_ids, ends = response.prompt_token_ids, frozenset(response.pair.stop_token_ids)
    llama.metrics, written, length = response.metrics, 0, len(prompt_ids)
    llama.input_ids[:length] = prompt_ids
    try:
        for outcome in response:
            llama.metrics, llama.choices, llama.n_tokens = response.metrics, response.choices, length
            if llama.on_step is not None:
                llama.on_step(response.request, outcome)
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
                llama.input_ids[length] = token
                length += 1
                llama.n_tokens = length
    finally:
        response.close()
        llama._requires_eval = True
        llama.pass_times = response.pass_times
