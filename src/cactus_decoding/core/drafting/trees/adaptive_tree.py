"""A tree, a chain, or no draft at all: whatever is worth its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.drafting.lengths import confidence
from cactus_decoding.core.drafting.timing import DraftCost, StepCosts, TokenCost
from cactus_decoding.core.drafting.trees.best_first import PricedTree
from cactus_decoding.core.drafting.trees.priced_growth import KeepChances, Placed, PricedGrowth
from cactus_decoding.core.types import ROOT

_BUCKETS = 10
_MEMORY = 0.998  # share of its weight that an observation keeps from one of its kind to the next
_PRIOR_WEIGHT = 4.0


class Chances:
    """Running rates of acceptance, one for each tenth of the draft's probability, which is also the first guess."""

    def __init__(self) -> None:
        self._rates = [((i + 0.5) / _BUCKETS * _PRIOR_WEIGHT, _PRIOR_WEIGHT) for i in range(_BUCKETS)]

    def of(self, probability: float) -> float:
        kept, seen = self._rates[min(int(_BUCKETS * probability), _BUCKETS - 1)]
        return kept / seen

    def learn(self, probability: float, *, kept: bool) -> None:
        place = min(int(_BUCKETS * probability), _BUCKETS - 1)
        before, seen = self._rates[place]
        self._rates[place] = (_MEMORY * before + kept, _MEMORY * seen + 1)


_FAST, _SLOW = 0.995, 0.998
"""Share of its weight that an observation keeps: of what steps promise and take, and of how promises are kept."""
_AT_FIRST = 8
_DOUBT = 0.6  # a mean of n steps may be off by this share of it, over the root of n
_CLOSE, _FAR = 8, 200
"""One step in so many goes to another way: where it may be the better one, and where it hardly can."""


@dataclass
class _Record:
    tried: int = 0
    steps: float = 0.0
    expected: float = 0.0
    seconds: float = 0.0
    emitted: float = 10.0  # as if some steps had kept their promise
    promised: float = 10.0
    last: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second: those that steps promised, which vary less, corrected by those that they brought."""
        return self.expected / self.seconds * self.emitted / self.promised if self.seconds else 0.0


class WayChooser:
    """Chooses one of several ways for each step; the first is preferred where two are as good."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._records = {name: _Record() for name in names}
        self._step = 0

    def choose(self) -> str:
        self._step += 1
        least = min(self._records, key=lambda name: self._records[name].tried)
        if self._records[least].tried < _AT_FIRST:
            return self._take(least)
        best = self.best
        for name, record in self._records.items():
            if name == best:
                continue
            may_win = record.rate * (1 + _DOUBT / record.steps**0.5) > self._records[best].rate
            if self._step - record.last >= (_CLOSE if may_win else _FAR):
                return self._take(name)
        return self._take(best)

    @property
    def best(self) -> str:
        return max(self._records, key=lambda name: self._records[name].rate)

    def rate(self, name: str) -> float:
        return self._records[name].rate

    def learn(self, name: str, promised: float, emitted: int, seconds: float) -> None:
        record = self._records[name]
        record.tried += 1
        record.steps = _FAST * record.steps + 1
        record.expected = _FAST * record.expected + promised
        record.seconds = _FAST * record.seconds + seconds
        record.promised = _SLOW * record.promised + promised
        record.emitted = _SLOW * record.emitted + emitted

    def _take(self, name: str) -> str:
        self._records[name].last = self._step
        return name


NO_DRAFT, CHAIN, BRANCHES = "no draft", "chain", "branches"  # the ways of drafting that are compared


@dataclass
class _Grown:
    """A chain that grows, or a tree that was looked up; see `PricedGrowth`."""

    passes: int = 0
    expected: float = 0.0
    placed: dict[int, Placed] = field(default_factory=dict)
    reach: float = 1.0


@dataclass
class AdaptiveTree(PricedTree):
    r"""Adds a token while what it is expected to gain is worth its time, to emit the most tokens per second.

    With r the tokens per second reached so far, b the seconds by which a token lengthens verification and d those of a
    pass of the draft, a token that is reached and kept with probability V is proposed where V > r b, and a further
    level is read where :math:`\sum (V c - r b)_+ > r d`, c being how often a level goes on. At the best possible r
    these rules attain it, and r grows until then (Dinkelbach, 1967; for trees SMART and CATS). V is the product of
    running rates of acceptance: of fixed children by their probability in the draft, of drawn ones by the probability
    of the likeliest token beside the fixed ones, of branches that were looked up by their order.

    A tree has costs that a chain has not: masks, and a cache to be put in order. So trees, chains and no draft at all
    are compared as whole steps; those that are not the best are tried again from time to time, one step in 200 where
    they are clearly slower. All seconds are measured, those in Python too.

    What is learnt is kept for the object's lifetime, and comes from finished steps alone. Since no time is measured
    twice the same, a seed gives the same tokens again only on a new object that was given both costs; the distribution
    of the tokens is the rule's in any case.

    Both costs are given in passes of the target on one token, or are measured.

    Raises:
        ValueError: for a parameter out of range, or only one of the two costs.

    Example:
        >>> AdaptiveTree(depth=8, draft_cost=0.1, token_cost=0.02).begin_step()  # levels at most
        8
    """

    nodes: Annotated[int, Field(ge=1, le=1024, description="in all at most"), Setting("tokens")] = 32
    depth: Annotated[int, Field(ge=1, le=100, description="levels at most")] = 16
    width: Annotated[
        int, Field(ge=0, le=64, description="of the likeliest tokens that may follow one"), Setting("tokens")
    ] = 4
    drawn: Annotated[int, Field(ge=0, le=1, description="of the others"), Setting("tokens")] = 1
    lookup: Annotated[
        int, Field(ge=0, le=64, description="copied from where the text repeats itself"), Setting("tokens")
    ] = 0
    draft_cost: DraftCost = None
    token_cost: TokenCost = None

    name = "adaptive"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._costs = {name: StepCosts(self.draft_cost, self.token_cost) for name in (NO_DRAFT, CHAIN, BRANCHES)}
        self._ways = WayChooser((CHAIN, BRANCHES, NO_DRAFT) if self.width else (CHAIN, NO_DRAFT))
        self._way, self._reads_prompt = CHAIN, True
        self._fixed, self._beside, self._looked_up = Chances(), Chances(), Chances()
        self._price = self._price_of_level = 0.0
        self._went_on = [8.0, 10.0]  # of levels that were reached: those where a child was kept, and all
        self._growth: PricedGrowth | _Grown = _Grown()

    @property
    def num_looked_up(self) -> int:
        return super().num_looked_up if self._way == BRANCHES else 0

    def max_children(self, depth: int) -> int:
        return super().max_children(depth) if self._way == BRANCHES else 1

    def begin_response(self) -> None:
        """Keep the time of reading the prompt out of the measurements."""
        self._reads_prompt = True

    def begin_step(self) -> int:
        """Return how many levels the step may have: none where no draft is worth its time."""
        self._way, self._growth = self._ways.choose(), _Grown()
        if self._reads_prompt:
            self._costs[self._way].begin_response()
            self._reads_prompt = False
        own, rate = self._costs[self._way], self._ways.rate(self._way)
        own.begin_step()
        others = [costs for costs in self._costs.values() if costs is not own and self._way == BRANCHES]
        self._price, self._price_of_level = rate * own.of_a_node(*others), rate * own.of_a_pass
        return 0 if self._way == NO_DRAFT else self.max_draft_tokens

    @property
    def branches(self) -> bool:
        return self._way == BRANCHES or not self.drawn

    def should_continue(self, logits: Tensor) -> bool:
        chain, sure = self._growth, confidence(logits)
        assert isinstance(chain, _Grown)
        chain.placed[chain.passes - 1] = Placed([], (chain.passes, sure), [])
        chain.passes += 1
        chain.reach *= self._beside.of(sure)
        chain.expected += chain.reach  # a term of `expected_kept`, whose next row is not known yet
        return chain.reach * self._going_on - self._price > self._price_of_level

    def grow(self, limit: int) -> PricedGrowth:
        width = self.width if self._way == BRANCHES else 1
        self._growth = growth = PricedGrowth(
            KeepChances(width, self.drawn, self._fixed.of, self._beside.of, self._looked_up.of),
            self.nodes,
            min(limit, self.max_draft_tokens),
            self._going_on,
            self._price,
            self._price_of_level,
        )
        return growth

    @property
    def _going_on(self) -> float:
        return self._went_on[0] / self._went_on[1]

    def choose_looked_up(self, parents: Sequence[int], ranks: Sequence[int]) -> list[int]:
        values, kept, placed = {ROOT: 1.0}, list[int](), dict[int, Placed]()
        for place, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
            value = values.get(parent, 0.0) * self._looked_up.of(1 / (1 + rank))
            if value > self._price:
                values[place] = value
                placed.setdefault(kept.index(parent) if parent >= 0 else ROOT, Placed([], None, [])).looked_up.append(
                    (len(kept), 1 / (1 + rank))
                )
                kept.append(place)
        self._growth = _Grown(0, sum(values.values()) - 1, placed)
        return kept

    def end_draft(self, num_drafted: int) -> None:
        self._costs[self._way].end_draft(num_drafted, self._growth.passes)

    def end_walk(self, path: Sequence[int]) -> None:
        """Learn which children were kept of the tokens that were reached."""
        for at, kept in zip((ROOT, *path), (*path, None), strict=True):
            children = self._growth.placed.get(at)
            if children is None:
                break
            self._went_on = [0.998 * self._went_on[0] + (kept is not None), 0.998 * self._went_on[1] + 1]
            for chances, some in ((self._fixed, children.fixed), (self._looked_up, children.looked_up)):
                for child, sure in some:
                    chances.learn(sure, kept=child == kept)
            if children.drawn is not None and kept in (None, children.drawn[0]):
                self._beside.learn(children.drawn[1], kept=kept is not None)

    def end_step(self, num_accepted: int) -> None:
        seconds = self._costs[self._way].end_step()
        if seconds is not None:
            self._ways.learn(self._way, 1 + self._growth.expected, num_accepted + 1, seconds)
