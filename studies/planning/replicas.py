"""How many replicas the runs of a result file would take, and how long their users would wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cactus_decoding.core.mistakes import check_number
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunSummary
from studies.planning.costs import ReplicaCosts, StepTimes
from studies.planning.fleet import Served, Workload, simulate

REQUESTS = 2000
"""So many are simulated at least, and five times as many as are in the fleet at once."""
_MOST = 10_000_000
"""And so many at most."""
_ROUNDING = 1e-9
"""By so much of it a latency, a sum of steps, may exceed the goal."""


@dataclass(frozen=True)
class Goal:
    """What users are promised: a share of the answers is complete within so many seconds."""

    latency: float
    share: float = 0.95

    def __post_init__(self) -> None:
        check_number("latency", self.latency, 0, math.inf, low_open=True, high_open=True)
        check_number("share", self.share, 0, 1, low_open=True, high_open=True)

    def is_kept(self, latencies: NDArray[np.floating[Any]]) -> bool:
        """Say whether answers with these latencies keep it."""
        return bool(np.quantile(latencies, self.share) <= self.latency * (1 + _ROUNDING))


@dataclass(frozen=True)
class Fleet:
    """What does not depend on rule and draft length: costs, requests that share a step at most, and a seed."""

    costs: ReplicaCosts
    max_batch: int
    seed: int = 0


@dataclass(frozen=True)
class Planned:
    """One run at one rate, requests a second, and the replicas that it takes.

    They are None where not even one for each simulated request keeps the goal; ``capacity`` is the requests a second
    that one answers at most.
    """

    summary: RunSummary
    rate: float
    replicas: int | None
    served: Served | None
    capacity: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        served = self.served
        latencies = {} if served is None else {f"latency_p{share}": served.quantile(share / 100) for share in (50, 95)}
        score = self.summary.metrics["score"]
        return {
            "run": self.summary.config.as_dict(),
            "rate": self.rate,
            "replicas": self.replicas,
            "capacity": self.capacity,
            "busy": None if served is None else served.busy,
            "batch": None if served is None else served.batch,
            "score": None if score is None else score._asdict(),
        } | latencies


def capacity(times: StepTimes, steps: float, *, max_batch: int, prompt: float) -> float:
    """Return how many requests a second one replica answers at most: max over b of b / (steps T(b) + b prompt)."""
    return max(batch / (steps * times(batch) + batch * prompt) for batch in range(1, max_batch + 1))


def steps_of(summary: RunSummary) -> NDArray[np.int64]:
    """Return the steps of every recorded answer, ``[answers]``."""
    return np.concatenate([result.column("steps") for result in summary.group.results]).astype(np.int64)


def fixed_length(config: RunConfig) -> int | None:
    """Return how many tokens every step of a run proposes; None where that varies."""
    length = config.num_speculative_tokens
    return length if isinstance(length, int) else None


def step_times(config: RunConfig, costs: ReplicaCosts) -> StepTimes | None:
    """Return what a run's steps take; None where the costs do not tell."""
    length = fixed_length(config)
    return None if length is None else costs.steps.get(length)


def planned_runs(summaries: Sequence[RunSummary], costs: ReplicaCosts) -> tuple[list[RunSummary], list[RunConfig]]:
    """Return the runs whose steps' times are known, and the others."""
    known = [each for each in summaries if step_times(each.config, costs) is not None]
    if not known:
        lengths = ", ".join(str(length) for length in sorted(costs.steps))
        there = ", ".join(dict.fromkeys(str(each.config.num_speculative_tokens) for each in summaries))
        raise ValueError(f"the costs are those of {lengths} proposals, but the runs have {there}")
    return known, [each.config for each in summaries if each not in known]


def plan(
    summaries: Sequence[RunSummary],
    fleet: Fleet,
    rates: Sequence[float],
    goal: Goal,
    *,
    replicas: int | None = None,
) -> list[Planned]:
    """Return, for each rate, what each run of `planned_runs` would take, the fewest replicas that keep a goal first.

    The latencies of a fixed number of replicas are worked out instead, if one is given.
    """
    found = [_planned(summary, fleet, rate, goal, replicas) for rate, summary in product(rates, summaries)]
    return sorted(found, key=lambda each: (rates.index(each.rate), each.replicas or math.inf, _wait(each, goal)))


def _wait(planned: Planned, goal: Goal) -> float:
    return math.inf if planned.served is None else planned.served.quantile(goal.share)


def _planned(summary: RunSummary, fleet: Fleet, rate: float, goal: Goal, replicas: int | None) -> Planned:
    times, steps, prompt = step_times(summary.config, fleet.costs), steps_of(summary), fleet.costs.prompt
    if times is None:
        raise ValueError(f"the costs do not tell what a step of {summary.config.label} takes")
    most = capacity(times, float(steps.mean()), max_batch=fleet.max_batch, prompt=prompt)
    latency = goal.latency if replicas is None else times(1) * float(steps.mean()) + prompt
    if 5 * rate * latency > _MOST:
        raise ValueError(
            f"{rate:g} requests a second that take up to {latency:g} s are too many to simulate: at most "
            f"{_MOST // 5:,} may be under way"
        )
    workload = Workload(rate, steps, max(REQUESTS, math.ceil(5 * rate * latency)), fleet.seed)

    def served(count: int) -> Served:
        return simulate(workload, times, replicas=count, max_batch=fleet.max_batch, prompt=prompt)

    if replicas is not None:
        return Planned(summary, rate, replicas, served(replicas), most)
    fastest = min(times(batch) for batch in range(1, fleet.max_batch + 1))
    if not goal.is_kept(fastest * workload.drawn[1][workload.measured] + prompt):  # even if nobody waited
        return Planned(summary, rate, None, None, most)
    least = math.ceil(rate / most)
    cap = max(least, workload.count)
    count, result = fewest(served, lambda each: goal.is_kept(each.latencies), least, cap) or (None, None)
    return Planned(summary, rate, count, result, most)


def fewest(
    served: Callable[[int], Served], good: Callable[[Served], bool], least: int, most: int
) -> tuple[int, Served] | None:
    """Return the fewest replicas, of ``least`` to ``most``, whose service is good, and what they do; None if none is.

    More of them do better: they are found by doubling and halving.
    """
    low, high = least - 1, least  # low is too few
    while not good(result := served(high)):
        if high == most:
            return None
        low, high = high, min(most, high + max(1, high // 2))
    while high - low > 1:
        middle = (low + high) // 2
        if good(there := served(middle)):
            high, result = middle, there
        else:
            low = middle
    return high, result
