"""When a response ends: stop tokens and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cactus_decoding.models.tokenizers import Tokenizer


class StoppingCriteria:
    """Ends a response at a stop token, or as soon as its text holds a stop string.

    Args:
        token_ids: stop tokens.
        strings: stop strings; not empty ones.
        tokenizer: to read the response with.
        prompt_length: tokens of the prompt, in which nothing is looked for.
    """

    def __init__(
        self, token_ids: Sequence[int], strings: Sequence[str], tokenizer: Tokenizer, prompt_length: int
    ) -> None:
        self._token_ids = frozenset(token_ids)
        self._strings = tuple(strings)
        self._tokenizer = tokenizer
        self._prompt_length = prompt_length
        # a stop string cannot span more tokens than it has bytes, but text is decoded from a token boundary: one spare
        self._window = max((len(s.encode()) for s in strings), default=0) + 1

    def __call__(self, token_ids: list[int]) -> bool:
        """Say whether the last token ends the response."""
        if token_ids[-1] in self._token_ids:
            return True
        if not self._strings:
            return False
        start = max(self._prompt_length, len(token_ids) - self._window)
        text = self._tokenizer.decode(token_ids[start:], skip_special_tokens=True)
        return any(s in text for s in self._strings)

    def trim(self, text: str) -> str:
        """Cut a response's text before the first stop string in it."""
        ends = [text.index(s) for s in self._strings if s in text]
        return text[: min(ends)] if ends else text
