"""From tokens to parts of text that can be shown at once: whole characters, never cut again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from cactus_decoding.core.models.base import num_shared

if TYPE_CHECKING:
    from cactus_decoding.core.models.tokenizers import Tokenizer

Told = TypeVar("Told")  # what is known of a token, such as its `Fate`

UNFINISHED = "\ufffd"  # what a tokenizer writes for bytes that are not a whole character yet


@dataclass(frozen=True)
class TextPart(Generic[Told]):
    text: str
    fate: Told


class IncrementalDetokenizer(Generic[Told]):
    """Decodes token by token.

    A token may hold a part of a UTF-8 character: the character belongs to the token that completes it. Text that might
    turn out to begin a stop string is held back too.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._context: list[int] = []  # the tokens decoded before: a tokenizer may drop a leading space
        self._waiting: list[tuple[int, Told]] = []  # tokens that do not end in a whole character
        self._held: list[TextPart[Told]] = []  # parts that may be cut

    def push(self, token_id: int, fate: Told) -> list[TextPart[Told]]:
        """Take a token; return the parts that can now be shown."""
        self._waiting.append((token_id, fate))
        if self._decode(self._context + [token for token, _ in self._waiting]).endswith(UNFINISHED):
            return []
        self._held += self._split_waiting()
        return self._release(len(self._text_held()) - self._length_of_a_started_stop())

    def finish(self) -> list[TextPart[Told]]:
        """Return what was held back, cut before a stop string."""
        self._held += self._split_waiting()
        text = self._text_held()
        return self._release(min([text.index(s) for s in self._stop if s in text], default=len(text)))

    def _split_waiting(self) -> list[TextPart[Told]]:
        """Share the text of the waiting tokens out: each gets what is settled once it is there."""
        waiting = [token for token, _ in self._waiting]
        whole = self._decode(self._context + waiting)
        settled, parts = len(self._decode(self._context)), []
        for count, (_, fate) in enumerate(self._waiting, start=1):
            text = self._decode(self._context + waiting[:count])
            end = max(settled, num_shared(text, whole))
            parts.append(TextPart(whole[settled:end], fate))
            settled = end
        self._context, self._waiting = waiting or self._context, []
        return parts

    def _release(self, length: int) -> list[TextPart[Told]]:
        """Return the first ``length`` characters that are held, part by part, and keep the rest."""
        released: list[TextPart[Told]] = []
        while self._held and length >= len(self._held[0].text):
            released.append(self._held.pop(0))
            length -= len(released[-1].text)
        if self._held and length > 0:
            first = self._held.pop(0)
            released.append(TextPart(first.text[:length], first.fate))
            self._held.insert(0, TextPart(first.text[length:], first.fate))
        return [part for part in released if part.text]

    def _length_of_a_started_stop(self) -> int:
        """Return the length of the longest end of the held text that begins (or holds) a stop string."""
        text = self._text_held()
        whole = [len(text) - text.index(s) for s in self._stop if s in text]
        begun = [n for s in self._stop for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n])]
        return max(whole + begun, default=0)

    def _text_held(self) -> str:
        return "".join(part.text for part in self._held)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
