"""An event simulation of replicas that answer requests in continuous batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
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


def step_seconds(by_batch: Mapping[int, float], max_batch: int) -> list[float]:
    """Return the seconds of a step by the number of requests that share it, from 0 to the most.

    It is linear between the sizes that are known. Below the smallest a step takes as long as there; above the largest
    it grows as between the last two.
    """
    sizes = sorted(by_batch)
    seconds = [by_batch[size] for size in sizes]
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else seconds[-1] / sizes[-1]
    batches = np.arange(max_batch + 1)
    found = np.interp(batches, sizes, seconds) + max(slope, 0.0) * (batches - sizes[-1]).clip(min=0)
    return [0.0, *found[1:].tolist()]


def capacity(seconds: Sequence[float], steps: float, prompt: float) -> float:
    """Return how many requests a second one replica answers at most: max over b of b / (steps T(b) + b prompt)."""
    return max(batch / (steps * seconds[batch] + batch * prompt) for batch in range(1, len(seconds)))


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


def simulate(workload: Workload, seconds: Sequence[float], *, replicas: int, prompt: float = 0.0) -> Served:
    """Return what a fleet does with a workload; every request is answered.

    A request goes to the less loaded of two random replicas ("power of two choices", Mitzenmacher 2001). Whoever waits
    there joins at the next step, as far as there is room; all advance by a step together.

    ``seconds`` are of a step, by batch size, which they limit; ``prompt`` is what a joining request adds to its first.
    """
    from simpy import Environment  # here: engines are measured in environments without it

    environment = Environment()
    arrivals, steps = workload.drawn
    begins, ends = arrivals[workload.measured.start], arrivals[-1]
    finished, max_batch = np.full(workload.count, np.nan), len(seconds) - 1
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
            taking = seconds[len(batch)] + joining * prompt
            yield environment.timeout(taking)
            taken += 1
            if begins <= environment.now <= ends:
                measured.append((taking, len(batch)))
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
