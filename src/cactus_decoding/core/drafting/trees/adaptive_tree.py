"""A tree, a chain, or no draft at all: whatever is worth its time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.drafting.lengths import Rates, confidence
from cactus_decoding.core.drafting.timing import Clock
from cactus_decoding.core.drafting.trees.best_first import KeepChances, Placed, PricedGrowth, PricedTree
from cactus_decoding.core.types import ROOT

DraftCost = Annotated[float | None, Setting("of a draft forward", "target forwards", ge=0, lt=math.inf)]
TokenCost = Annotated[float | None, Setting("of a proposal", "target forwards", ge=0, lt=math.inf)]
"""What `StepCosts` may be told, as the knobs of what chooses by it."""
_OF_TIMES = 0.99
"""Share of its weight that an observation keeps from one step to the next."""
_KNOWN, _LONG = 10.0, 3.0
"""From how many steps on a time is known, and how many times that long counts as an interruption by something else."""


class _Line:
    """Seconds as a line over counts, fitted by least squares."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # of 1, k, k^2, seconds, k * seconds

    def learn(self, count: int, seconds: float) -> float:
        """Learn from a step, and return its seconds without what was an interruption."""
        steps, counts, _, total, _ = self._sums.tolist()
        slope = self.slope()
        if steps > _KNOWN and slope is not None:
            expected = total / steps + slope * (count - counts / steps)
            seconds = min(seconds, _LONG * max(expected, 0.5 * total / steps))
        self._sums = _OF_TIMES * self._sums + np.array([1, count, count * count, seconds, count * seconds])
        return seconds

    @property
    def mean(self) -> float:
        _, k, _, seconds, _ = self._sums.tolist()
        return float(seconds / k) if k else 0.0

    def slope(self, *others: _Line) -> float | None:
        """Return the seconds of one more, by the steps of other lines too; None as long as all steps had as many."""
        n, k, kk, seconds, k_seconds = sum((other._sums for other in others), self._sums).tolist()
        spread = n * kk - k * k
        return max(0.0, (n * k_seconds - k * seconds) / spread) if spread > 1e-6 * n * kk else None

    def of_one(self) -> float:
        """Return the mean seconds over one more than the mean count."""
        n, k, _, seconds, _ = self._sums.tolist()
        return float(seconds / (n + k)) if n else 0.0


class StepCosts:
    """Learns the seconds that one more proposal takes.

    Verifying k proposals takes :math:`a + b k` seconds, with a and b fitted by least squares, and drafting in m passes
    :math:`c + d m`. The first step of a response does not count, because it reads the prompt too. Given costs are those
    of a proposal's draft forward and of its verification, in units of a target forward on one token.

    Raises `ValueError` if only one of the two costs is given.
    """

    def __init__(
        self, draft_cost: float | None = None, token_cost: float | None = None, clock: Clock = time.perf_counter
    ) -> None:
        if (draft_cost is None) != (token_cost is None):
            raise ValueError(
                f"draft_cost and token_cost go together: give both or none, but not {draft_cost} and {token_cost}"
            )
        self._given = None if draft_cost is None or token_cost is None else (draft_cost, token_cost)
        self._clock = clock
        self._reads_prompt = True
        self._num_drafted = self._num_passes = 0
        self._began = self._drafted = 0.0
        self._drafting, self._verifying = _Line(), _Line()

    @property
    def of_a_pass(self) -> float:
        if self._given is not None:
            return self._given[0]
        mean, slope = self._drafting.mean, self._drafting.slope()
        # what a step's draft takes in any case cannot be negative, and is hardly most of it
        return mean if slope is None else min(max(slope, mean / 4), mean)

    def of_a_node(self, *others: StepCosts) -> float:
        """Return the seconds by which a proposal lengthens verification; 0 while all steps have the same length."""
        if self._given is not None:
            return self._given[1]
        slope = self._verifying.slope(*(other._verifying for other in others)) or 0.0
        # the first token of a forward takes at least as long as any further one: a slope of few steps can be anything
        return min(slope, self._verifying.of_one())

    def begin_response(self) -> None:
        """The next step also reads a prompt."""
        self._reads_prompt = True

    def begin_step(self) -> None:
        self._began = self._clock()

    def end_draft(self, num_drafted: int, num_passes: int | None = None) -> None:
        """Take the time of drafting, by default with a pass for each proposal."""
        self._drafted, self._num_drafted = self._clock(), num_drafted
        self._num_passes = num_drafted if num_passes is None else num_passes

    def end_step(self) -> float | None:
        """Learn from a step, and return its seconds, or None if they do not count."""
        k, passes = self._num_drafted, self._num_passes
        draft, verify = self._drafted - self._began, self._clock() - self._drafted
        if self._given is not None:
            draft, verify = passes * self._given[0], 1 + k * self._given[1]
        counts = self._given is not None or not self._reads_prompt
        self._reads_prompt = False
        if not counts:
            return None
        return self._drafting.learn(passes, draft) + self._verifying.learn(k, verify)


_BUCKETS = 10


class Chances:
    """Running rates of acceptance, one for each tenth of the draft's probability, which is also the first guess."""

    def __init__(self) -> None:
        self._rates = Rates(((i + 0.5) / _BUCKETS for i in range(_BUCKETS)), 4, 0.998)

    def of(self, probability: float) -> float:
        return self._rates[_bucket(probability)]

    def learn(self, probability: float, *, kept: bool) -> None:
        self._rates.learn(_bucket(probability), kept)


def _bucket(probability: float) -> int:
    return min(int(_BUCKETS * probability), _BUCKETS - 1)


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

    nodes: Annotated[int, Setting("in all at most", "tokens", ge=1, le=1024)] = 32
    depth: Annotated[int, Setting("levels at most", ge=1, le=100)] = 16
    width: Annotated[int, Setting("of the likeliest tokens that may follow one", "tokens", ge=0, le=64)] = 4
    drawn: Annotated[int, Setting("of the others", "tokens", ge=0, le=1)] = 1
    lookup: Annotated[int, Setting("copied from where the text repeats itself", "tokens", ge=0, le=64)] = 0
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
