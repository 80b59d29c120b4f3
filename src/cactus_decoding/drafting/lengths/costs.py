"""What steps cost and bring, as running averages."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

_MEMORY = 0.98
"""The share of its weight that an observation keeps from one step to the next."""


class StepCosts:
    r"""Learns the tokens per second of the steps so far, and the seconds that one more proposal takes.

    Verifying k proposals takes :math:`a + b k` seconds, with a and b fitted by least squares. The first step of a
    response is left out of what is measured: it reads the prompt too.

    Args:
        given: seconds of a proposal's draft forward and of its verification, in units of a target forward on one token;
            None measures both.
        clock: gives seconds.
    """

    def __init__(self, given: tuple[float, float] | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._given, self._clock = given, clock
        self._reads_prompt = True
        self._num_drafted = 0
        self._num_passes = 0
        self._began = self._drafted = 0.0
        self._sums = np.zeros(8)  # of 1, k, k^2, verify seconds, k * verify seconds, draft seconds, tokens, passes

    @property
    def rate(self) -> float:
        """Tokens per second; 0 while nothing is known."""
        seconds = self._sums[3] + self._sums[5]
        return float(self._sums[6] / seconds) if seconds else 0.0

    @property
    def of_a_proposal(self) -> float:
        """Seconds that one more proposal takes to draft and to verify; 0 while nothing is known."""
        return self.of_a_pass + self.of_a_node()

    @property
    def of_a_pass(self) -> float:
        """Seconds of a draft forward; 0 while nothing is known."""
        if self._given is not None:
            return self._given[0]
        draft, passes = self._sums[5], self._sums[7]
        return float(draft / passes) if passes else 0.0

    def of_a_node(self, *others: StepCosts) -> float:
        """Return the seconds by which a proposal lengthens verification, over the steps of others too if there are any.

        As long as all steps are of one length nothing is known of it, and it counts as 0.
        """
        if self._given is not None:
            return self._given[1]
        sums = sum((other._sums for other in others), self._sums)
        n, k, kk, verify, k_verify = sums[:5]
        spread = n * kk - k * k
        return float(max(0.0, (n * k_verify - k * verify) / spread)) if spread > 1e-6 * n * kk else 0.0

    def begin_response(self) -> None:
        """Hear that the next step also reads a prompt."""
        self._reads_prompt = True

    def begin_step(self) -> None:
        """Start the clock."""
        self._began = self._clock()

    def end_draft(self, num_drafted: int, num_passes: int | None = None) -> None:
        """Take the time that drafting took, with a pass for each proposal unless it was another number of them."""
        self._drafted, self._num_drafted = self._clock(), num_drafted
        self._num_passes = num_drafted if num_passes is None else num_passes

    def end_step(self, num_tokens: float) -> float | None:
        """Learn from a step that brought some tokens; return its seconds, or None where they are not to be counted."""
        k, passes = self._num_drafted, self._num_passes
        draft, verify = self._drafted - self._began, self._clock() - self._drafted
        if self._given is not None:
            draft, verify = passes * self._given[0], 1 + k * self._given[1]
        counts = self._given is not None or not self._reads_prompt
        self._reads_prompt = False
        if not counts:
            return None
        self._sums = _MEMORY * self._sums + np.array([1, k, k * k, verify, k * verify, draft, num_tokens, passes])
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
