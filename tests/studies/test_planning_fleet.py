"""The event simulation: exact on small timetables, and by queueing theory where that knows the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from studies.planning.costs import StepTimes
from studies.planning.fleet import Workload, simulate


@dataclass(frozen=True)
class Timetable(Workload):
    """Requests at given times, with given steps."""

    times: tuple[float, ...] = ()

    @property
    def drawn(self):
        return np.array(self.times), self.steps


def timetable(times, steps):
    return Timetable(1.0, np.array(steps), len(times), times=times)


TIMES = StepTimes({1: 1.0, 2: 1.5, 3: 2.5})


def test_who_arrives_during_a_step_joins_the_next_one():
    found = simulate(timetable((0.0, 0.5), [2, 1]), TIMES, replicas=1, max_batch=4, prompt=0.25)
    # a step of one and a prompt until 1.25; then one of two and a prompt, until 3
    assert found.latencies.tolist() == [3.0, 2.5]


def test_a_full_batch_makes_others_wait_in_turn():
    found = simulate(timetable((0.0, 0.25, 0.5), [2, 1, 1]), TIMES, replicas=1, max_batch=1)
    assert found.latencies.tolist() == [2.0, 2.75, 3.5]


def test_whoever_is_done_makes_room_at_once():
    found = simulate(timetable((0.0, 0.25, 0.5), [2, 2, 1]), TIMES, replicas=1, max_batch=2)
    # 0: alone until 1; 0 and 1 until 2.5, which ends 0; 1 and 2 until 4
    assert found.latencies.tolist() == [2.5, 3.75, 3.5]


def test_an_idle_replica_wakes_up():
    found = simulate(timetable((0.0, 100.0), [1, 1]), TIMES, replicas=1, max_batch=2)
    assert found.latencies.tolist() == [1.0, 1.0]


def test_every_request_is_answered_whatever_the_fleet():
    workload = Workload(rate=50.0, steps=np.array([1, 5, 9]), count=500)
    for replicas in (1, 7, 200):
        found = simulate(workload, TIMES, replicas=replicas, max_batch=3).latencies
        assert len(found) == 400
        assert np.isfinite(found).all()
        assert found.min() >= 1.0 - 1e-9


def test_the_same_seed_gives_the_same_answer_and_another_one_another():
    first, again, other = (
        simulate(Workload(5.0, np.array([3, 4]), 200, seed), TIMES, replicas=20, max_batch=3).quantile(0.5)
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_waiting_is_what_queueing_theory_says():
    """One request at a time, alike long: M/D/1, whose mean wait is rho D / (2 (1 - rho)) (Pollaczek and Khinchine).

    The mean of 60 independent runs is compared at 4.5 of its standard errors: a false alarm comes in 7 of a million
    seeds. Twice the wait, which exponential work would have, is refuted.
    """
    rho, service = 0.6, 10 * 0.01
    means = [
        simulate(
            Workload(rho / service, np.array([10]), 3000, seed), StepTimes({1: 0.01}), replicas=1, max_batch=1
        ).latencies.mean()
        for seed in range(60)
    ]
    mean, error = np.mean(means), np.std(means, ddof=1) / np.sqrt(len(means))
    wait = rho * service / (2 * (1 - rho))
    assert abs(mean - service - wait) < 4.5 * error
    assert abs(mean - service - 2 * wait) > 4.5 * error


def test_two_choices_wait_less_than_one_would():
    """With one choice a replica of a large fleet is an M/D/1 queue; the better of two is far from it."""
    rho, service, replicas = 0.9, 1.0, 200
    workload = Workload(rho * replicas / service, np.array([10]), 40_000)
    found = simulate(workload, StepTimes({1: 0.1}), replicas=replicas, max_batch=1)
    assert found.latencies.mean() - service < rho * service / (2 * (1 - rho)) / 2
