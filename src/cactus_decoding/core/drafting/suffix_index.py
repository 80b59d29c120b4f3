"""An index of a growing text: where its end stood before, and what followed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cactus_decoding.core.models.base import num_shared

END = -1  # separates several texts in one index: it is no token, so no match reaches over it
_VOTING = 5  # if some places match so many tokens of the end, all of these vote; else those that match the most
_VOICES = 32  # only the latest so many places vote
_LONGEST = 64  # longer matches count as one of this length


class Match(NamedTuple):
    """What followed where a text's end stood before, by majority; ``size`` tokens of the end stood there.

    ``support`` is, for each token, how many tokens before it stood there too, times the share of those places that
    agree on it. A single place, two tokens of whose end match, supports what follows by 2.
    """

    size: int
    token_ids: list[int]
    support: list[float]


class SuffixIndex:
    """Finds where a text's end stood before by going from each token to where it stood last.

    A token is added, or taken back, in constant time; a search looks at the places of the text's last token. Sources:
    Saxena (2023); Oliaro et al. (arXiv 2411.04975), who keep whole suffix trees.
    """

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.token_ids: list[int] = []
        self._last: dict[int, int] = {}  # of each token the last place
        self._before: list[int] = []  # of each place the one before it with the same token, or -1
        self.add(token_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        self._mend()
        for place, token in enumerate(token_ids, len(self.token_ids)):
            self._before.append(self._last.get(token, -1))
            self._last[token] = place
        self.token_ids += token_ids

    def follow(self, token_ids: list[int]) -> None:
        """Replace the text by another one; their shared beginning costs nothing."""
        self._mend()
        known = num_shared(self.token_ids, token_ids)
        for token in reversed(self.token_ids[known:]):
            self._last[token] = self._before.pop()
        del self.token_ids[known:]
        self.add(token_ids[known:])

    def _mend(self) -> None:
        """Begin anew if the last change was interrupted: then text and links differ in length."""
        if len(self._before) != len(self.token_ids):
            self.__init__(self.token_ids)  # type: ignore[misc]  # as if it were new

    def places(self, text: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
        """Yield, latest first, how much of a text's end an earlier place matches, and the place after it."""
        own = self.token_ids
        place = self._last.get(text[-1], -1) if text else -1
        if text is own and place >= 0:
            place = self._before[place]
        while place >= 0:
            size, limit = 1, min(most, place + 1, len(text))
            while size < limit and own[place - size] == text[-1 - size]:
                size += 1
            yield size, place + 1
            place = self._before[place]

    def continuations(self, limit: int, max_ngram_size: int = 3, min_ngram_size: int = 1) -> Iterator[list[int]]:
        """Yield up to ``limit`` tokens after each earlier place of the end, the longest and latest match first."""
        text, shorter = self.token_ids, []
        for size, end in self.places(text, max_ngram_size):
            if size == max_ngram_size:  # nothing better is to come
                yield text[end : end + limit]
            elif size >= min_ngram_size:
                shorter.append((-size, -end))
        for _, end in sorted(shorter):
            yield text[-end : -end + limit]

    def longest(self, limit: int, *others: SuffixIndex) -> Match:
        """Return up to ``limit`` tokens that followed where the most of the end stood, by majority.

        All places with five tokens or more vote, and the latest wins a tie. Where a place reaches the text's end, it is
        taken to go on alike.
        """
        text, best = self.token_ids, 0
        found: list[tuple[list[int], int]] = []
        for index in (self, *others):
            for size, end in index.places(text, _VOTING):
                if size > best:
                    best, found = size, []
                if size == best:
                    found.append((index.token_ids, end))
                    if size == _VOTING and len(found) >= _VOICES:
                        break
        size = max((_common_end(text, *place) for place in found), default=0)
        token_ids, shares = _agreed(found, limit)
        return Match(size, token_ids, [share * (size + i) for i, share in enumerate(shares)])


def _agreed(places: list[tuple[list[int], int]], limit: int) -> tuple[list[int], list[float]]:
    """Return the tokens on which most of those places agree that agreed before, and their shares."""
    agreed: list[int] = []
    shares: list[float] = []
    while places and len(agreed) < limit:
        text, place = places[0]
        if len(places) == 1 and place < len(text):  # as is usual: what follows there needs no count
            copied = text[place : place + limit - len(agreed)]
            known = copied[: copied.index(END)] if END in copied else copied
            agreed += known
            shares += [1.0] * len(known)
            if len(known) < len(copied):
                break
            places = [(text, place + len(copied))]
            continue
        ahead = [text[place] if place < len(text) else agreed[place - len(text)] for text, place in places]
        token, votes = Counter(ahead).most_common(1)[0]  # of equal numbers the first
        if token == END:
            break
        agreed.append(token)
        shares.append(votes / len(ahead))
        places = [(text, place + 1) for (text, place), each in zip(places, ahead, strict=True) if each == token]
    return agreed, shares


def _common_end(text: list[int], other: list[int], end: int) -> int:
    """Return how many tokens at the end of a text also stand before a place of another, up to 64."""
    size, limit = 0, min(_LONGEST, end, len(text))
    while size < limit and other[end - 1 - size] == text[-1 - size]:
        size += 1
    return size
