"""An event simulation of replicas that answer requests in continuous batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from studies.planning.costs import StepTimes

if TYPE_CHECKING:
    from simpy import Environment, Event

WARM_UP = 0.2
"""Share of the requests that come before the measured ones: the fleet begins empty."""


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


class _Replica:
    """One engine: whoever waits joins at the next step, as far as there is room; all advance by a step together."""

    def __init__(self, fleet: _Fleet) -> None:
        self.fleet, self.waiting, self.running = fleet, deque[int](), list[tuple[int, int]]()
        self.steps, self.measured, self.requests_in_steps, self.busy = 0, 0, 0, 0.0
        self.idle: Event | None = None
        fleet.environment.process(self.work())

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def give(self, request: int) -> None:
        self.waiting.append(request)
        if self.idle is not None:
            idle, self.idle = self.idle, None
            idle.succeed()

    def work(self) -> Generator[Event, Any, None]:
        fleet, environment = self.fleet, self.fleet.environment
        while True:
            if not len(self):
                self.idle = environment.event()
                yield self.idle
            joining = 0
            while self.waiting and len(self.running) < fleet.max_batch:
                request = self.waiting.popleft()
                heappush(self.running, (self.steps + int(fleet.steps[request]), request))
                joining += 1
            batch = len(self.running)
            seconds = fleet.step_seconds[batch] + joining * fleet.prompt
            yield environment.timeout(seconds)
            self.steps += 1
            if fleet.begins <= environment.now <= fleet.ends:
                self.measured += 1
                self.busy += seconds
                self.requests_in_steps += batch
            while self.running and self.running[0][0] <= self.steps:
                fleet.finished[heappop(self.running)[1]] = environment.now


class _Fleet:
    def __init__(
        self, environment: Environment, workload: Workload, times: StepTimes, replicas: int, max_batch: int,
        prompt: float,
    ) -> None:  # fmt: skip
        self.environment, self.max_batch, self.prompt = environment, max_batch, prompt
        self.arrivals, self.steps = workload.drawn
        self.begins, self.ends = self.arrivals[workload.measured.start], self.arrivals[-1]
        self.finished = np.full(workload.count, np.nan)
        self.step_seconds = [0.0, *(times(batch) for batch in range(1, max_batch + 1))]
        self.replicas = [_Replica(self) for _ in range(replicas)]
        self.choices = np.random.default_rng((workload.seed, 1)).integers(replicas, size=(workload.count, 2))

    def arrive(self) -> Generator[Event, Any, None]:
        """Send each request to the one of two random replicas that has less to do."""
        for request, time in enumerate(self.arrivals):
            yield self.environment.timeout(time - self.environment.now)
            first, second = (self.replicas[each] for each in self.choices[request])
            (first if len(first) <= len(second) else second).give(request)


def simulate(workload: Workload, times: StepTimes, *, replicas: int, max_batch: int, prompt: float = 0.0) -> Served:
    """Return what a fleet does with a workload; every request is answered.

    A request goes to the less loaded of two random replicas ("power of two choices", Mitzenmacher 2001), waits there
    for a place in the batch, and takes its steps with whoever else is there.

    ``times`` are of a step, by batch size; ``prompt`` is seconds that a joining request adds to its first step.
    """
    from simpy import Environment  # here: engines are measured in environments without it

    environment = Environment()
    fleet = _Fleet(environment, workload, times, replicas, max_batch, prompt)
    environment.process(fleet.arrive())
    environment.run()
    steps = sum(each.measured for each in fleet.replicas)
    requests = sum(each.requests_in_steps for each in fleet.replicas)
    busy = sum(each.busy for each in fleet.replicas) / (replicas * (fleet.ends - fleet.begins))
    return Served((fleet.finished - fleet.arrivals)[workload.measured], min(busy, 1.0), requests / max(steps, 1))
