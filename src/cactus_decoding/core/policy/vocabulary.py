"""The text that each token of a vocabulary adds to what stands before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(frozen=True, eq=False)
class Vocabulary:
    # empty for rows of a model that stand for no token, and with U+FFFD for bytes that are not a whole character
    texts: tuple[str, ...]
    control: frozenset[int] = frozenset()  # tokens without text, such as the end of a text
    fragments: Mapping[int, bytes] = field(default_factory=dict)  # the bytes of tokens that split characters

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> Vocabulary:
        """Return the vocabulary of a tokenizer; raise `TypeError` for an object that cannot decode."""
        if not callable(getattr(tokenizer, "decode", None)):
            raise TypeError(
                f"a tokenizer is needed to know what tokens say, but it is {tokenizer!r} (transformers' generate keeps "
                "the one it is given: bind it, as functools.partial(speculative_generate, tokenizer=tokenizer))"
            )
        made = _MADE.setdefault(tokenizer, {})
        if size not in made:
            texts = tuple(_texts(tokenizer, size))
            made[size] = cls(texts, frozenset(tokenizer.all_special_ids), _fragments(tokenizer, texts))
        return made[size]

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to a text, in UTF-8."""
        found = self.fragments.get(token)
        return self.texts[token].encode(errors="surrogatepass") if found is None else found


_MADE: WeakKeyDictionary[Any, dict[int, Vocabulary]] = WeakKeyDictionary()


def _texts(tokenizer: Any, size: int) -> list[str]:
    """Decode every token after an ordinary one, because a token at the beginning of a text may lose its space."""
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


def _fragments(tokenizer: Any, texts: tuple[str, ...]) -> dict[int, bytes]:
    """Return the bytes of tokens whose text alone has U+FFFD, as their names in the vocabulary spell them."""
    names = {token: tokenizer.convert_ids_to_tokens(token) for token, text in enumerate(texts) if "\ufffd" in text}
    return {token: spelled for token, name in names.items() if (spelled := _spelled(name)) is not None}


def _spelled(name: Any) -> bytes | None:
    r"""Return the bytes that a name such as ``<0xE2>``, or with one letter a byte, stands for; None for a plain text.

    >>> _spelled("<0xE2>"), _spelled("âĢ"), _spelled("\ufffd")
    (b'\xe2', b'\xe2\x80', None)
    """
    if name is None or isinstance(name, bytes):
        return name
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", name):
        return bytes.fromhex(byte[1])
    return bytes(map(_BYTES.__getitem__, name)) if set(name) <= _BYTES.keys() else None


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter of byte-level vocabularies; invisible bytes have letters from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(0x100) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + i): byte for i, byte in enumerate(unseen)}


_BYTES = _byte_letters()
