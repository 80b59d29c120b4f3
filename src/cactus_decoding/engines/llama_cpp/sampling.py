"""From llama.cpp's sampling settings, grammars and processors of logits to probabilities."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.checks import check_integer, check_number
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights

RowProcessor = Callable[[list[int], Tensor], Tensor]
"""``(tokens before the row, logits [vocabulary]) -> logits``, which may be the same object; a pure function."""


def as_sampling_params(temperature: float, top_k: int, top_p: float, min_p: float) -> SamplingParams:
    """Return what llama-cpp-python's values mean.

    Args:
        temperature: 0 takes the most likely token; below 0 it means 1 and no cuts.
        top_k: 0 or less keeps all tokens.
        top_p: 1 or more keeps all; 0 or less the most likely one.
        min_p: 0 or less keeps all.
    """
    for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        check_number(name, value, -math.inf, math.inf)
    top_k = check_integer("top_k", top_k, -(2**31))
    if temperature < 0:
        return SamplingParams()
    if top_p <= 0:
        top_k, top_p = 1, 1.0
    hottest = min(temperature, sys.float_info.max)
    return SamplingParams(hottest, max(top_k, 0), min(top_p, 1.0), max(min_p, 0.0))


class LlamaSampling:
    """Rows in llama.cpp's order, which has the temperature last; see `RowSampling`.

    Processors come first, in order. Then top-k, top-p and min-p cut rows at temperature 1, and the temperature comes
    last; transformers, vLLM and the rest of this package have it before the cuts.
    """

    def __init__(self, sampling: SamplingParams, processors: Sequence[RowProcessor] = ()) -> None:
        self._sampling, self._processors = sampling, processors
        self._cut = SamplingParams(top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)
        self._in_any_order = sampling.temperature in (0, 1) or not self._cut.truncates
        # the sampling, where its order makes no difference and nothing is processed
        self.plain = sampling if self._in_any_order and not processors else None

    def __call__(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        logits = self._processed(logits, token_ids)
        if self._in_any_order:
            return self._sampling(logits)
        probs = self._cut(logits)
        tempered = (probs / probs.amax(-1, keepdim=True)) ** (1 / self._sampling.temperature)
        return tempered / tempered.sum(-1, keepdim=True)

    def untempered(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        return SamplingParams()(self._processed(logits, token_ids))

    def _processed(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        if not self._processors:
            return logits
        rows, first = [], len(token_ids) - len(logits) + 1
        for i, row in enumerate(logits):
            for processor in self._processors:
                row = processor(token_ids[: first + i], row)
            rows.append(row)
        return torch.stack(rows)


class Penalties:
    """What llama.cpp does to tokens that were generated lately: a prompt is not looked at.

    A token's logit is divided by ``repeat`` (multiplied where it is not positive), then loses ``presence`` once and
    ``frequency`` for each time that it is there. The last ``reach`` tokens count; all, if it is negative.
    """

    def __init__(self, prompt_length: int, reach: int, repeat: float, frequency: float, presence: float) -> None:
        self._prompt_length, self._reach = prompt_length, reach
        for name, value in (("repeat_penalty", repeat), ("frequency", frequency), ("presence", presence)):
            check_number(name, value, -math.inf, math.inf)
        self._repeat, self._frequency, self._presence = repeat, frequency, presence

    def __call__(self, token_ids: list[int], row: Tensor) -> Tensor:
        start = self._prompt_length if self._reach < 0 else max(self._prompt_length, len(token_ids) - self._reach)
        counts = Counter(token_ids[start:])
        if not counts:
            return row
        ids = torch.tensor(list(counts))
        logits, times = row[ids], torch.tensor(list(counts.values()), dtype=row.dtype)
        logits = torch.where(logits <= 0, logits * self._repeat, logits / self._repeat)
        return row.index_copy(0, ids, logits - times * self._frequency - self._presence)


class EndsLater:
    """Lets no answer end before it has ``least`` tokens, or ever, where that is None."""

    def __init__(self, ends: Sequence[int], prompt_length: int, least: int | None) -> None:
        self._ends, self._prompt_length, self._least = torch.tensor(ends, dtype=torch.long), prompt_length, least

    def __call__(self, token_ids: list[int], row: Tensor) -> Tensor:
        if self._least is not None and len(token_ids) - self._prompt_length >= self._least:
            return row
        return row.index_fill(0, self._ends, -math.inf)


class LogitBias:
    def __init__(self, bias: Mapping[Any, Any], vocabulary_size: int) -> None:
        if not isinstance(bias, Mapping):
            raise TypeError(f"logit_bias must be an object of tokens and numbers, but is {bias!r}")
        for key, value in bias.items():
            check_number(f"logit_bias of token {key}", value, -math.inf, math.inf)
            if not str(key).isdecimal() or int(key) >= vocabulary_size:
                raise ValueError(f"logit_bias must name tokens from 0 to {vocabulary_size - 1}, but names {key!r}")
        self._ids = torch.tensor([int(key) for key in bias], dtype=torch.long)
        self._values = torch.tensor([float(value) for value in bias.values()])

    def __call__(self, token_ids: list[int], row: Tensor) -> Tensor:
        return row.index_add(0, self._ids, self._values)


def row_processor(processor: Callable[[Any, Any], Any]) -> RowProcessor:
    """Return a logits processor of llama-cpp-python, which takes and gives arrays, as one of rows."""

    def process(token_ids: list[int], row: Tensor) -> Tensor:
        scores = processor(np.asarray(token_ids, np.intc), row.numpy().copy())  # it may write into them
        return torch.from_numpy(np.ascontiguousarray(scores, np.float32))

    return process


_KEPT = 256  # states before the newest one; no step goes back further


class _State:
    """llama.cpp's grammar after some tokens."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        finalize(self, library.free_grammar, handle)

    def mask(self, candidates: np.ndarray[Any, Any]) -> None:
        """Set the logits of candidates that are not allowed to minus infinity."""
        library.mask_by_grammar(self._handle, candidates)

    def allows(self, token: int) -> bool:
        """Return whether a token may come next; llama.cpp would die of one that may not."""
        candidate = np.zeros(1, library.CANDIDATE)
        candidate["id"] = token
        self.mask(candidate)
        return not np.isneginf(candidate["logit"][0])

    def after(self, token: int) -> _State:
        return _State(library.grammar_behind(self._handle, token))


class GrammarMask:
    """Sets the logits of tokens that a grammar does not allow to minus infinity.

    It is asked about rows of drafts and of rejected tokens too, so it keeps a state for each of the last tokens. Rows
    after a token that is not allowed are left as they are: no rule accepts that token, so nothing is drawn from them.

    Who gives a `llama_cpp.LlamaGrammar` to `CactusLlama` has its text read by llama.cpp, without bounds; what clients
    of a server send goes to `GrammarConstraint` instead.
    """

    def __init__(self, model: GgufWeights, grammar: Any, prompt_length: int) -> None:
        handle = library.make_grammar(model.vocab, grammar._grammar, grammar._root)
        if not handle:
            raise ValueError("llama.cpp cannot read the grammar: it must not repeat what may be empty")
        self._prompt_length = prompt_length
        self._tokens, self._states = list[int](), {0: _State(handle)}
        self._candidates = np.zeros(model.vocabulary_size, library.CANDIDATE)
        self._candidates["id"] = np.arange(model.vocabulary_size)

    def __call__(self, token_ids: list[int], row: Tensor) -> Tensor:
        state = self._after(token_ids[self._prompt_length :])
        if state is None:
            return row
        self._candidates["logit"] = row.numpy()
        state.mask(self._candidates)
        return torch.from_numpy(self._candidates["logit"].copy())

    def _after(self, tokens: list[int]) -> _State | None:
        shared = 0
        while shared < min(len(tokens), len(self._tokens)) and tokens[shared] == self._tokens[shared]:
            shared += 1
        known = max(depth for depth in self._states if depth <= shared)
        self._tokens = tokens[:known]
        first = max(1, known - _KEPT)
        self._states = {depth: each for depth, each in self._states.items() if depth == 0 or first <= depth <= known}
        for depth in range(known, len(tokens)):
            state, token = self._states[depth], tokens[depth]
            if not state.allows(token):
                return None
            self._states[depth + 1] = state.after(token)
            self._tokens.append(token)
        return self._states[len(tokens)]
