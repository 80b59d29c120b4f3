"""What single tokens are called where they are shown one by one."""

from __future__ import annotations

from cactus_decoding.generation.detokenizer import UNFINISHED
from cactus_decoding.models.tokenizers import Tokenizer


class TokenNames:
    """The text of each token by itself, remembered.

    Special tokens go by their name, parts of a character by what the tokenizer's vocabulary calls them, and numbers
    beyond the vocabulary (logits are often padded) by ``#number``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._names = tokenizer, dict[int, str]()
        # some tokenizers drop a space at the start of a text: every token is therefore read behind another one
        self._before = list(tokenizer("a", add_special_tokens=False).input_ids)[-1:]

    def __call__(self, token_id: int) -> str:
        """Return a token's text."""
        if token_id not in self._names:
            self._names[token_id] = self._look_up(token_id)
        return self._names[token_id]

    def _look_up(self, token_id: int) -> str:
        before, both = (self._decode(ids) for ids in (self._before, [*self._before, token_id]))
        text = both.removeprefix(before)
        if text and UNFINISHED not in text:
            return text
        name = self._tokenizer.convert_ids_to_tokens(token_id) if token_id < len(self._tokenizer) else None
        return name if isinstance(name, str) and name else f"#{token_id}"

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
