"""Finds where a text repeats itself, and what followed there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cactus_decoding.types import ROOT


def continuations(
    token_ids: list[int], limit: int, max_ngram_size: int = 3, min_ngram_size: int = 1
) -> Iterator[list[int]]:
    """Yield up to ``limit`` tokens behind each earlier occurrence of the last few, the longest and latest match first.

    Args:
        token_ids: the text.
        limit: of the tokens behind a match, 1 or more.
        max_ngram_size: matches longer than this are as good as one of this length.
        min_ngram_size: shorter matches do not count.

    Example:
        >>> [*continuations([5, 6, 9, 7, 6, 8, 5, 6], 2)]
        [[9, 7], [8, 5]]
    """
    shorter: list[tuple[int, int]] = []
    for end in range(len(token_ids) - 1, 0, -1):
        size, most = 0, min(max_ngram_size, end)
        while size < most and token_ids[end - 1 - size] == token_ids[-1 - size]:
            size += 1
        if size == max_ngram_size:  # nothing better is to come
            yield token_ids[end : end + limit]
        elif size >= min_ngram_size:
            shorter.append((-size, -end))
    for _, end in sorted(shorter):
        yield token_ids[-end : -end + limit]


@dataclass
class LookedUp:
    """What was found behind matches, as branches of a tree: the same tokens behind the same ones stand once.

    Attributes:
        token_ids: parents before their children.
        parents: of each the place of the one that it follows, -1 for the text.
    """

    token_ids: list[int]
    parents: list[int]

    @classmethod
    def of(cls, branches: Iterable[list[int]], max_nodes: int, max_children: Callable[[int], int]) -> LookedUp:
        """Return as many of some branches as there is room for, the first ones first.

        Args:
            branches: tokens that may follow the text.
            max_nodes: how many tokens there may be in all.
            max_children: how many may follow a token that follows so many others; see `TreeShape.max_children`.

        Example:
            >>> LookedUp.of([[5, 6], [5, 7], [8]], 3, lambda depth: 2)
            LookedUp(token_ids=[5, 6, 7], parents=[-1, 0, 0])
        """
        found = cls([], [])
        for tokens in branches:
            if len(found.token_ids) >= max_nodes:
                break
            at = ROOT
            for depth, token in enumerate(tokens):
                behind = found.behind(at)
                known = next((i for i in behind if found.token_ids[i] == token), None)
                if known is None:
                    if len(behind) >= max_children(depth) or len(found.token_ids) >= max_nodes:
                        break
                    known = len(found.token_ids)
                    found.token_ids.append(token)
                    found.parents.append(at)
                at = known
        return found

    def behind(self, place: int | None) -> list[int]:
        """Return the places of what follows one of the tokens, or with -1 the text; nothing for None."""
        return [] if place is None else [i for i, parent in enumerate(self.parents) if parent == place]

    def ranks(self) -> list[int]:
        """Return of each token how many others that follow the same one stand before it."""
        return [self.behind(parent).index(i) for i, parent in enumerate(self.parents)]

    def only(self, places: list[int]) -> LookedUp:
        """Return some of the tokens, by their ascending places, each of which follows another one or the text."""
        new = {ROOT: ROOT} | {place: i for i, place in enumerate(places)}
        return LookedUp([self.token_ids[i] for i in places], [new[self.parents[i]] for i in places])
