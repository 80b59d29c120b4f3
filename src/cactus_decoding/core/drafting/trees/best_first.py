"""A tree that grows where the draft is likely right: by what tokens are worth beyond a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from torch import Tensor

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.trees.shape import ChildCounts, TreeShape

_STEP = 1.3  # factor by which a price changes at first while the right one is sought
_LEAST = 1e-4


class OpenNode(NamedTuple):
    """A token that may get children, and how likely it is reached and kept.

    Of the likeliest tokens after it, ``fixed`` says how likely each is kept, and ``drawn`` how likely a drawn one is
    beside the first 0, 1, 2, ... of them; it is empty if none may be drawn.
    """

    reach: float
    fixed: Sequence[float]
    drawn: Sequence[float]

    def values(self, split: ChildCounts) -> list[float]:
        fixed = [self.reach * chance for chance in self.fixed[: split.fixed]]
        return [*fixed, self.reach * self.drawn[split.fixed]] if split.drawn else fixed


class Priced(NamedTuple):
    """The children of a token that are worth most at a price."""

    split: ChildCounts
    gain: float
    total: int


_NOTHING = Priced(ChildCounts(0, 0), 0.0, 0)


def worth(value: float, price: float, going_on: float, levels: int) -> tuple[float, int]:
    r"""Return what a token and those that may follow it are worth beyond their price, and how many are worth it.

    .. math:: \sum_{j = 0}^{levels} (value \cdot going\_on^j - price)_+

    What follows is unknown, so it is guessed to be a chain in which each token is kept with the chance ``going_on``.
    ``value`` is the probability that the token is reached and kept; the price is in kept tokens.
    """
    gain, count = 0.0, 0
    while count <= levels and value > price:
        gain += value - price
        count += 1
        value *= going_on
    return gain, count


def best_split(candidate: OpenNode, price: float, going_on: float, levels: int) -> Priced:
    """Return the children of a token that gain most at a price, in kept tokens; see `worth`."""
    reach, fixed, drawn = candidate
    best, gain, count = _NOTHING, 0.0, 0
    for number in range(len(fixed) + 1):
        if number:
            more, further = worth(reach * fixed[number - 1], price, going_on, levels)
            if not further:
                break
            gain, count = gain + more, count + further
            if gain > best.gain:
                best = Priced(ChildCounts(number, 0), gain, count)
        if number < len(drawn):
            more, further = worth(reach * drawn[number], price, going_on, levels)
            if gain + more > best.gain:
                best = Priced(ChildCounts(number, 1), gain + more, count + further)
    return best


def affordable(
    candidates: Sequence[OpenNode], left: int, going_on: float, levels: int, begin: float
) -> tuple[float, list[ChildCounts]]:
    """Return the lowest price at which no more tokens are worth it than are left, and the children at that price.

    ``left`` counts what follows the children too. The search begins at ``begin``.

    Example:
        >>> candidates = [OpenNode(1.0, [0.5, 0.3], [0.8, 0.5, 0.3])]
        >>> [affordable(candidates, left, 0.9, 0, 0.1)[1] for left in (1, 2, 3)]
        [[ChildCounts(fixed=0, drawn=1)], [ChildCounts(fixed=1, drawn=1)], [ChildCounts(fixed=2, drawn=1)]]
    """
    price, low, high = max(begin, _LEAST), 0.0, 1.0
    fitting, splits = 1.0, [_NOTHING.split] * len(candidates)
    while True:
        priced = [best_split(each, price, going_on, levels) for each in candidates]
        total = sum(each.total for each in priced)
        if total <= left:
            high, fitting, splits = price, price, [each.split for each in priced]
            if total == left or price <= _LEAST:
                break
            price = max((low + price) / 2 if low else price / _STEP, _LEAST)
        else:
            low, price = price, min(price * _STEP, (price + high) / 2)
        if high - low < 0.02 * high:
            break
    return fitting, splits


class BestFirstGrowth:
    """The tree of one step: its levels get the children that are worth more than a price.

    A drawn child counts as what draws are on average, so its place and its siblings are settled before it is drawn. One
    more token is thought to be kept after another with the shape's ``acceptance``; prices are in kept tokens.
    """

    def __init__(self, shape: BestFirstTree, levels: int) -> None:
        self._shape, self._left, self._levels = shape, shape.nodes, levels
        self._price = 0.1
        self._reach = [1.0]
        self._promising: list[int] = []

    def reserve(self, num_looked_up: int) -> None:
        self._left -= num_looked_up

    def split(self, logits: Tensor, looked_up: Sequence[Sequence[float]]) -> list[ChildCounts]:
        self._levels -= 1
        rows = greatest_probs(logits, self._shape.width + 1)
        # the text has repeated them, too
        of_others = [[(1 + probability) / 2 for probability in one] for one in looked_up]
        others = [logits.shape[-1] - len(one) for one in looked_up]  # tokens that there are besides
        candidates = [
            self._candidate(reach * max(0.0, 1 - sum(chances)) if left else 0.0, row[: max(0, left - 1)])
            for reach, chances, row, left in zip(self._reach, of_others, rows, others, strict=True)
        ]
        self._price, splits = affordable(candidates, self._left, self._shape.acceptance, self._levels, self._price)
        values: list[float] = []
        for i, (candidate, split) in enumerate(zip(candidates, splits, strict=True)):
            values += [self._reach[i] * chance for chance in of_others[i]] + candidate.values(split)
            self._left -= sum(split)
        self._promising = []
        if self._levels and self._left > 0:
            self._promising = [i for i, value in enumerate(values) if value * self._shape.acceptance > self._price]
        self._reach = [values[i] for i in self._promising]
        return splits

    def promising(self) -> list[int]:
        return self._promising

    def _candidate(self, reach: float, probabilities: list[float]) -> OpenNode:
        fixed, drawn, rest = probabilities[: self._shape.width], list[float](), 1.0
        for number in range(len(fixed) + 1 if self._shape.drawn else 0):
            drawn.append(rest * self._shape.acceptance)
            rest = max(0.0, rest - fixed[number]) if number < len(fixed) else rest
        return OpenNode(reach, fixed, drawn)


def greatest_probs(logits: Tensor, count: int) -> list[list[float]]:
    """Return the greatest probabilities of each row, before temperature and cuts, one fewer than all at most."""
    count = max(1, min(count, logits.shape[-1] - 1))
    rows = logits.float()
    probs: list[list[float]] = (rows.topk(count).values - rows.logsumexp(-1, keepdim=True)).exp().tolist()
    if any(row[0] != row[0] for row in probs):
        raise ValueError("the draft's logits give no probabilities (NaN or infinite)")
    return probs


@dataclass(frozen=True)
class BestFirstTree(TreeShape):
    """Proposes the tokens that are likeliest to be reached and kept, ``nodes`` in all.

    A token is reached and kept with the product of the chances on the way to it. That of a fixed child is its
    probability in the draft, before temperature and truncation; that of the drawn one beside the fixed children S is
    ``acceptance`` times the probability outside S. Each level gets the children that are worth more than a price, which
    is the lowest at which they and what is expected to follow them are no more tokens than are left.

    A drawn child counts as what it is expected to be: whatever is drawn, its siblings and its place stay. What grows
    after it does look at its probabilities. If the whole tree's tokens were ranked in the end, as EAGLE-2 (arXiv
    2406.16858) does where nothing is drawn, siblings would be dropped for what was drawn, and lossless would no longer
    be lossless.

    Raises:
        TypeError, ValueError: for a parameter of the wrong type, or out of range.

    Example:
        >>> import torch
        >>> growth = BestFirstTree(nodes=4).grow(8)
        >>> growth.split(torch.tensor([[0.97, 0.02, 0.01]]).log(), [[]])  # the draft is sure: further levels gain more
        [ChildCounts(fixed=1, drawn=0)]
        >>> growth.promising()
        [0]
    """

    nodes: Annotated[int, Setting("in all at most", "tokens", ge=1, le=1024)] = 16
    depth: Annotated[int, Setting("levels at most", ge=1, le=100)] = 8
    width: Annotated[int, Setting("of the likeliest tokens that may follow one", "tokens", ge=0, le=64)] = 4
    drawn: Annotated[int, Setting("of the others", "tokens", ge=0, le=1)] = 1
    acceptance: Annotated[float, Setting("how likely a drawn token is thought to be kept", gt=0, lt=1)] = 0.9
    lookup: Annotated[int, Setting("copied from where the text repeats itself", "tokens", ge=0, le=64)] = 0

    name = "best_first"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.width and not self.drawn:
            raise ValueError("a tree needs children: width and drawn must not both be 0")

    @property
    def max_draft_tokens(self) -> int:
        return min(self.depth, self.nodes)

    @property
    def max_nodes(self) -> int:
        return self.nodes

    @property
    def max_drawn(self) -> int:
        return self.drawn

    @property
    def num_looked_up(self) -> int:
        return min(self.lookup, self.nodes)

    def max_children(self, depth: int) -> int:
        return self.width + self.drawn

    def grow(self, limit: int) -> BestFirstGrowth:
        return BestFirstGrowth(self, min(limit, self.max_draft_tokens))
