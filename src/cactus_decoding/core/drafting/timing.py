"""How long steps take: by passes that were measured before, or as running averages of the steps so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.files.jsonl import read_as, read_json

Clock = Callable[[], float]
DraftCost = Annotated[
    float | None, Field(ge=0, lt=math.inf, description="of a draft forward"), Setting("target forwards")
]
TokenCost = Annotated[float | None, Field(ge=0, lt=math.inf, description="of a proposal"), Setting("target forwards")]
"""What `StepCosts` may be told, as the knobs of what chooses by it."""
_SINGLY = 8


@dataclass(frozen=True)
class PassTimes:
    """Seconds of forward passes, of which only the ratios matter.

    ``target`` pairs numbers of tokens, ascending from 1, with the target's seconds for them; where passes are short,
    with what else a step takes. ``draft`` is for one proposal, 0 for a drafter that copies; ``reading`` for a token
    that the drafter has not read yet, in a longer pass; ``pair`` for a proposal after such a token, 0 if unknown.
    """

    target: tuple[tuple[int, float], ...]
    draft: float = 0.0
    reading: float = 0.0
    source: str = "given"
    pair: float = 0.0

    def __post_init__(self) -> None:
        widths = [width for width, _ in self.target]
        if widths[:1] != [1] or widths != sorted(set(widths)):
            raise ValueError(f"widths of passes must ascend from 1, but are {widths}")
        seconds = [seconds for _, seconds in self.target]
        drafts = self.draft, self.reading, self.pair
        if not all(map(math.isfinite, (*seconds, *drafts))) or min(seconds) <= 0 or min(drafts) < 0:
            raise ValueError(f"seconds of passes must be positive, but are {self.target}, {drafts}")

    @property
    def widths(self) -> list[int]:
        return [width for width, _ in self.target]

    def of(self, width: int) -> float:
        """Return the seconds of the target's pass over so many tokens: those of the next measured width."""
        for known, seconds in self.target:
            if known >= width:
                return seconds
        known, seconds = self.target[-1]
        return seconds * width / known

    def step(self, count: int) -> float:
        """Return the seconds of a step in which so many tokens are drafted, in a pass each, and verified."""
        return self.of(count + 1) + count * self.draft

    def catching_up(self, unread: int) -> float:
        """Return how much longer drafting takes where so many tokens before the last one are unread."""
        return unread * self.draft if unread <= self.singly else self._together(unread)

    @cached_property
    def singly(self) -> int:
        """Up to how many such tokens are faster read one by one: kernels may take long for two or three rows."""
        return sum(1 for _ in takewhile(lambda count: count * self.draft < self._together(count), range(1, _SINGLY)))

    @property
    def lag(self) -> float:
        """The seconds that a proposal takes longer after one unread token."""
        return max(self.pair - self.draft, 0.0) if self.pair else self.reading

    def _together(self, unread: int) -> float:
        return self.lag + (unread - 1) * self.reading if unread else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "source"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str) -> PassTimes:
        return replace(read_as(cls, values, f"{source} holds no times of passes"), source=source)

    @classmethod
    def read(cls, path: Path) -> PassTimes:
        return cls.from_dict(part_of_profile(path, "times"), str(path))


def part_of_profile(path: Path, name: str) -> dict[str, Any]:
    try:
        values = read_json(path)
    except OSError as error:
        raise ValueError(f"cannot read the profile {str(path)!r}: {error.strerror or error}") from None
    if not isinstance(values, dict) or not isinstance(values.get(name), dict):
        raise ValueError(f"{str(path)!r} is no profile: it has no {name!r}")
    return dict(values[name])


_MEMORY = 0.99
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
        self._sums = _MEMORY * self._sums + np.array([1, count, count * count, seconds, count * seconds])
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
