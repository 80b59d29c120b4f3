"""What the tokens of a vocabulary say: the text that each adds to what stands before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The texts of a vocabulary's tokens.

    Attributes:
        texts: of each token; empty for rows of a model that stand for no token.
        control: tokens that are no text, such as the end of a text.
    """

    texts: tuple[str, ...]
    control: frozenset[int] = frozenset()

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> Vocabulary:
        """Return what the tokens of a tokenizer say; made once for each tokenizer and size.

        Args:
            tokenizer: of transformers.
            size: of the model's rows, which may be longer than the tokenizer's vocabulary.

        Raises:
            TypeError: for something that cannot decode.
        """
        if not callable(getattr(tokenizer, "decode", None)):
            raise TypeError(
                f"a tokenizer is needed to know what tokens say, but it is {tokenizer!r} (transformers' generate keeps "
                "the one it is given: bind it, as functools.partial(speculative_generate, tokenizer=tokenizer))"
            )
        made = _MADE.setdefault(tokenizer, {})
        if size not in made:
            made[size] = cls(tuple(_texts(tokenizer, size)), frozenset(tokenizer.all_special_ids))
        return made[size]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the texts in order, whatever rows stand for no token at the end.

        Example:
            >>> Vocabulary(("a", "b", "")).fingerprint == Vocabulary(("a", "b")).fingerprint
            True
        """
        known = max((i + 1 for i, text in enumerate(self.texts) if text), default=0)
        hashed = hashlib.sha256()
        for text in self.texts[:known]:
            spelled = text.encode(errors="surrogatepass")
            hashed.update(len(spelled).to_bytes(4, "big") + spelled)
        return hashed.hexdigest()


_MADE: WeakKeyDictionary[Any, dict[int, Vocabulary]] = WeakKeyDictionary()


def _texts(tokenizer: Any, size: int) -> list[str]:
    """Decode every token behind an ordinary one, because a token that begins a text may lose its space."""
    known = min(size, len(tokenizer))
    before = next((found for found in tokenizer("a", add_special_tokens=False).input_ids[-1:]), 0)
    lead = len(_decode(tokenizer, [[before]])[0])
    texts = [text[lead:] for text in _decode(tokenizer, [[before, token] for token in range(known)])]
    return texts + [""] * (size - known)


def _decode(tokenizer: Any, sequences: list[list[int]]) -> list[str]:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:  # all at once, and without the clean-up that would take spaces away
        return list(fast.decode_batch(sequences, skip_special_tokens=False))
    return [tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in sequences]
