"""What steps cost and bring, as running averages; `PassTimes` is measured before steps instead."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

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
    """Learns the tokens per second of the steps so far, and the seconds that one more proposal takes.

    Verifying k proposals takes :math:`a + b k` seconds, with a and b fitted by least squares, and drafting in m passes
    :math:`c + d m`. The first step of a response does not count, because it reads the prompt too. Given costs are those
    of a proposal's draft forward and of its verification, in units of a target forward on one token.
    """

    def __init__(self, given: tuple[float, float] | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._given, self._clock = given, clock
        self._reads_prompt = True
        self._num_drafted = self._num_passes = 0
        self._began = self._drafted = 0.0
        self._drafting, self._verifying = _Line(), _Line()
        self._seconds = self._tokens = 0.0

    @property
    def rate(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    @property
    def of_a_proposal(self) -> float:
        return self.of_a_pass + self.of_a_node()

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

    def end_step(self, num_tokens: float) -> float | None:
        """Learn from a step that brought some tokens; return its seconds, or None if they do not count."""
        k, passes = self._num_drafted, self._num_passes
        draft, verify = self._drafted - self._began, self._clock() - self._drafted
        if self._given is not None:
            draft, verify = passes * self._given[0], 1 + k * self._given[1]
        counts = self._given is not None or not self._reads_prompt
        self._reads_prompt = False
        if not counts:
            return None
        draft, verify = self._drafting.learn(passes, draft), self._verifying.learn(k, verify)
        self._seconds = _MEMORY * self._seconds + draft + verify
        self._tokens = _MEMORY * self._tokens + num_tokens
        return draft + verify


def given_costs(draft_cost: float | None, token_cost: float | None) -> tuple[float, float] | None:
    """Return both costs, or None where none is given; raise `ValueError` for one of them alone."""
    if draft_cost is not None and token_cost is not None:
        return draft_cost, token_cost
    if draft_cost is not None or token_cost is not None:
        raise ValueError(
            f"draft_cost and token_cost go together: give both or none, but not {draft_cost} and {token_cost}"
        )
    return None
