"""An index of a growing text: where its end stood before, and what followed there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_LONGEST_KEY = 5
"""Runs up to this length are kept in the index; longer matches are found by comparing backwards."""
_LONGEST_MATCH = 64
"""Matches longer than this are as good as one of this length."""


class Match(NamedTuple):
    """What followed where the text's end stood before.

    Attributes:
        size: how many tokens of the end stood there; 0 where nothing was found.
        token_ids: what followed.
    """

    size: int
    token_ids: list[int]


class SuffixIndex:
    """Finds where a text's end stood before without looking through the text.

    Of ends of up to five tokens the longest counts, of longer ones the latest. It is deterministic in the text, so what
    it proposes has the law of a single token. Sources: Saxena (2023); Oliaro et al. (arXiv 2411.04975), who keep whole
    suffix trees.

    Example:
        >>> index = SuffixIndex()
        >>> index.follow([5, 6, 7, 8, 9, 5, 6, 7])
        >>> index.longest(2)
        Match(size=3, token_ids=[8, 9])
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}  # where a run ended last, and before that

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take a text, which usually goes on from the last one; any other begins a new index."""
        known = len(self._text)
        if len(token_ids) < known or list(token_ids[:known]) != self._text:
            self.__init__()  # type: ignore[misc]  # as if it were new
            known = 0
        for token in token_ids[known:]:
            self._text.append(token)
            end = len(self._text)
            for size in range(1, min(_LONGEST_KEY, end) + 1):
                run = tuple(self._text[end - size :])
                self._ends[run] = (end, self._ends.get(run, (0, 0))[0])

    def longest(self, limit: int) -> Match:
        """Return ``limit`` tokens behind an earlier place of the text's end; from the end itself they go on alike."""
        text = self._text
        for size in range(min(_LONGEST_KEY, len(text)), 0, -1):
            end = self._ends[tuple(text[-size:])][1]  # the last place is the text's own end
            if end:
                most = min(_LONGEST_MATCH, end)
                while size < most and text[end - 1 - size] == text[-1 - size]:
                    size += 1
                return Match(size, [text[end + i % (len(text) - end)] for i in range(limit)])
        return Match(0, [])
