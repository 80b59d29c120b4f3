"""What a grammar allows after any tokens, those that are rejected included."""

from __future__ import annotations

from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.weights import GgufModel

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

    Args:
        grammar: a `llama_cpp.LlamaGrammar`. Who gives one to `CactusLlama` has its text read by llama.cpp, without
            bounds; what a server's clients send goes to `GrammarConstraint` instead.
    """

    def __init__(self, model: GgufModel, grammar: Any, prompt_length: int) -> None:
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
