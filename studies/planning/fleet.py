"""An event simulation of replicas that answer requests in continuous batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from simpy import Event

WARM_UP = 0.2
"""Share of the requests that come before the measured ones: the fleet begins empty."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step by the number of requests that share it: linear between the sizes that are known.

    Below the smallest size a step takes as long as there; above the largest it grows as between the last two.
    """

    by_batch: Mapping[int, float]

    def __call__(self, batch: int) -> float:
        """Return the seconds of one step."""
        sizes = sorted(self.by_batch)
        seconds = [self.by_batch[size] for size in sizes]
        if batch <= sizes[-1]:
            return float(np.interp(batch, sizes, seconds))
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else seconds[-1] / sizes[-1]
        return float(seconds[-1] + max(slope, 0.0) * (batch - sizes[-1]))


def capacity(times: StepTimes, steps: float, *, max_batch: int, prompt: float) -> float:
    """Return how many requests a second one replica answers at most: max over b of b / (steps T(b) + b prompt)."""
    return max(batch / (steps * times(batch) + batch * prompt) for batch in range(1, max_batch + 1))


@dataclass(frozen=True)
class Workload:
    """What arrives: ``count`` requests, ``rate`` a second at random times (a Poisson process).

    Each takes the steps of one of the answers, ``[answers]``, at random; fleets with equal seeds are compared on the
    same requests.
    """

    rate: float
    steps: NDArray[np.int64]
    count: int
    seed: int = 0

    @cached_property
    def drawn(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Arrival times in seconds and steps of every request, ``[count]`` each."""
        generator = np.random.default_rng(self.seed)
        arrivals = np.cumsum(generator.exponential(1 / self.rate, self.count))
        return arrivals, generator.choice(self.steps, self.count)

    @property
    def measured(self) -> slice:
        """The requests after the warm-up."""
        return slice(int(WARM_UP * self.count), None)


@dataclass(frozen=True)
class Served:
    """What a fleet did, in seconds from arrival to the last token, of every request after the warm-up.

    Until the last arrival, ``busy`` is the share of the replicas' time in which they computed, and ``batch`` the mean
    number of requests that shared a step.
    """

    latencies: NDArray[np.float64]
    busy: float
    batch: float

    def quantile(self, share: float) -> float:
        """Return the latency that a share of the requests stays within, in seconds."""
        return float(np.quantile(self.latencies, share))


def simulate(workload: Workload, times: StepTimes, *, replicas: int, max_batch: int, prompt: float = 0.0) -> Served:
    """Return what a fleet does with a workload; every request is answered.

    A request goes to the less loaded of two random replicas ("power of two choices", Mitzenmacher 2001). Whoever waits
    there joins at the next step, as far as there is room; all advance by a step together.

    ``times`` are of a step, by batch size; ``prompt`` is seconds that a joining request adds to its first step.
    """
    from simpy import Environment  # here: engines are measured in environments without it

    environment = Environment()
    arrivals, steps = workload.drawn
    begins, ends = arrivals[workload.measured.start], arrivals[-1]
    finished, step_seconds = np.full(workload.count, np.nan), [0.0, *map(times, range(1, max_batch + 1))]
    choices = np.random.default_rng((workload.seed, 1)).integers(replicas, size=(workload.count, 2))
    waiting = [deque[int]() for _ in range(replicas)]
    running = [list[tuple[int, int]]() for _ in range(replicas)]  # heaps: the step that ends a request, and which
    arrived = [environment.event() for _ in range(replicas)]
    measured: list[tuple[float, int]] = []  # of each step its seconds and its batch

    def replica(place: int) -> Generator[Event, Any, None]:
        queue, batch, taken = waiting[place], running[place], 0
        while True:
            if not queue and not batch:
                arrived[place] = environment.event()
                yield arrived[place]
            joining = min(len(queue), max_batch - len(batch))
            for _ in range(joining):
                request = queue.popleft()
                heappush(batch, (taken + int(steps[request]), request))
            seconds = step_seconds[len(batch)] + joining * prompt
            yield environment.timeout(seconds)
            taken += 1
            if begins <= environment.now <= ends:
                measured.append((seconds, len(batch)))
            while batch and batch[0][0] <= taken:
                finished[heappop(batch)[1]] = environment.now

    def arrive() -> Generator[Event, Any, None]:
        for request, time in enumerate(arrivals):
            yield environment.timeout(time - environment.now)
            place = min(choices[request], key=lambda each: len(waiting[each]) + len(running[each]))
            waiting[place].append(request)
            if not arrived[place].triggered:
                arrived[place].succeed()

    for place in range(replicas):
        environment.process(replica(place))
    environment.process(arrive())
    environment.run()
    busy, requests = (sum(each) for each in zip((0.0, 0), *measured, strict=True))
    share = min(busy / (replicas * (ends - begins)), 1.0)
    return Served((finished - arrivals)[workload.measured], share, requests / max(len(measured), 1))
