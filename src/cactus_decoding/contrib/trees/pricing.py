"""What tokens of a tree are worth beyond their price, and which children of a token to propose at a price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cactus_decoding.drafting.lengths.base import Split

_STEP = 1.3
"""By how much a price is raised or lowered at first while the right one is sought."""
_LEAST = 1e-4
"""The lowest price."""


class OpenNode(NamedTuple):
    """A token that may get children.

    Attributes:
        reach: how likely it is reached and kept.
        fixed: of the likeliest tokens behind it, how likely each is kept.
        drawn: how likely a drawn one is kept beside the first 0, 1, 2, ... of those; empty if none may be drawn.
    """

    reach: float
    fixed: Sequence[float]
    drawn: Sequence[float]

    def values(self, split: Split) -> list[float]:
        """Return how likely each of some children is reached and kept."""
        fixed = [self.reach * chance for chance in self.fixed[: split.fixed]]
        return [*fixed, self.reach * self.drawn[split.fixed]] if split.drawn else fixed


class Priced(NamedTuple):
    """The children of a token that are worth most at a price.

    Attributes:
        split: how many they are.
        gain: what they and those that may follow are worth beyond their price.
        total: how many these are together.
    """

    split: Split
    gain: float
    total: int


_NOTHING = Priced(Split(0, 0), 0.0, 0)


def worth(value: float, price: float, going_on: float, levels: int) -> tuple[float, int]:
    r"""Return what a token and those that may follow it are worth beyond their price, and how many are worth it.

    .. math:: \sum_{j = 0}^{levels} (value \cdot going\_on^j - price)_+

    What follows is not known yet, so it is guessed to be a chain in which each token is kept with the same chance.

    Args:
        value: how likely the token is reached and kept.
        price: of one token, in kept tokens.
        going_on: how likely one more is kept.
        levels: how many may follow.

    Example:
        >>> worth(0.5, 0.2, 0.5, 3)  # 0.5 and 0.25 are worth more than 0.2
        (0.35, 2)
    """
    gain, count = 0.0, 0
    while count <= levels and value > price:
        gain += value - price
        count += 1
        value *= going_on
    return gain, count


def best_split(candidate: OpenNode, price: float, going_on: float, levels: int) -> Priced:
    """Return the children of a token that gain most at a price.

    Args:
        candidate: the token.
        price: of one token, in kept tokens.
        going_on: how likely one more is kept behind each.
        levels: how many levels may follow the children.

    Example:
        >>> candidate = OpenNode(1.0, [0.5, 0.3], [0.8, 0.5, 0.3])
        >>> best_split(candidate, 0.15, 0.9, 0).split  # the likeliest, and one of the others
        Split(fixed=1, drawn=1)
        >>> best_split(candidate, 0.45, 0.9, 0).split
        Split(fixed=0, drawn=1)
    """
    reach, fixed, drawn = candidate
    best, gain, count = _NOTHING, 0.0, 0
    for number in range(len(fixed) + 1):
        if number:
            more, further = worth(reach * fixed[number - 1], price, going_on, levels)
            if not further:
                break
            gain, count = gain + more, count + further
            if gain > best.gain:
                best = Priced(Split(number, 0), gain, count)
        if number < len(drawn):
            more, further = worth(reach * drawn[number], price, going_on, levels)
            if gain + more > best.gain:
                best = Priced(Split(number, 1), gain + more, count + further)
    return best


def affordable(
    candidates: Sequence[OpenNode], left: int, going_on: float, levels: int, begin: float, least: float = _LEAST
) -> tuple[float, list[Split]]:
    """Return the lowest price at which no more tokens are worth it than are left, and the children at that price.

    Args:
        candidates: the tokens of a level.
        left: how many tokens may be proposed, what follows the children included.
        going_on: how likely one more is kept behind each child.
        levels: how many levels may follow the children.
        begin: where to begin the search.
        least: the lowest price to look at.

    Example:
        >>> candidates = [OpenNode(1.0, [0.5, 0.3], [0.8, 0.5, 0.3])]
        >>> [affordable(candidates, left, 0.9, 0, 0.1)[1] for left in (1, 2, 3)]
        [[Split(fixed=0, drawn=1)], [Split(fixed=1, drawn=1)], [Split(fixed=2, drawn=1)]]
    """
    price, low, high = max(begin, least), 0.0, 1.0
    fitting, splits = 1.0, [_NOTHING.split] * len(candidates)
    while True:
        priced = [best_split(each, price, going_on, levels) for each in candidates]
        total = sum(each.total for each in priced)
        if total <= left:
            high, fitting, splits = price, price, [each.split for each in priced]
            if total == left or price <= least:
                break
            price = max((low + price) / 2 if low else price / _STEP, least)
        else:
            low, price = price, min(price * _STEP, (price + high) / 2)
        if high - low < 0.02 * high:
            break
    return fitting, splits
