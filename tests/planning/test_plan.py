"""The fewest replicas, and which runs need them."""

from __future__ import annotations

import pytest
from support.result_files import made, several

from cactus_decoding.evaluation.runs.summary import summarise
from cactus_decoding.planning.costs import Costs, StepTimes
from cactus_decoding.planning.plan import Fleet, Goal, capacity, fewest, plan, planned_runs

COSTS = Costs({4: StepTimes({1: 0.01, 16: 0.04}), 8: StepTimes({1: 0.012, 16: 0.06})})
FLEET = Fleet(COSTS, max_batch=16)


@pytest.mark.parametrize("enough", [1, 2, 3, 7, 10, 100])
@pytest.mark.parametrize("least", [1, 2])
def test_the_fewest_are_found(enough, least):
    asked = []

    def served(count):
        asked.append(count)
        return count

    found, result = fewest(served, lambda count: count >= enough, least)
    assert found == result == max(enough, least)
    assert min(asked) >= least
    assert len(asked) == len(set(asked))


def test_one_fewer_breaks_the_promise():
    (run,) = summarise([made("lossless", 4)])
    goal = Goal(0.3)
    (found,) = plan([run], FLEET, [400.0], goal)
    assert found.served.quantile(0.95) <= 0.3
    (fewer,) = plan([run], FLEET, [400.0], goal, replicas=found.replicas - 1)
    assert fewer.served.quantile(0.95) > 0.3


def test_fewer_steps_take_fewer_replicas_and_come_first():
    fast = made("cactus:delta=1.0", 4)
    fast.answers["steps"] = [5] * len(fast.answers["steps"])
    runs = summarise([made("lossless", 4), fast])
    first, second = plan(runs, FLEET, [2000.0], Goal(0.5))
    assert first.summary.config.rule == "cactus:delta=1.0"
    assert first.replicas < second.replicas


def test_what_is_too_slow_alone_has_no_number():
    (run,) = summarise([made("lossless", 4)])  # ten steps of 10 ms
    (found,) = plan([run], FLEET, [1.0], Goal(0.05))
    assert (found.replicas, found.served) == (None, None)
    assert found.as_dict()["replicas"] is None


def test_capacity_is_that_of_the_best_batch():
    assert capacity(StepTimes({1: 1.0, 2: 1.0, 4: 4.0}), 1.0, max_batch=4, prompt=0.0) == 2.0
    assert capacity(StepTimes({1: 1.0}), 2.0, max_batch=1, prompt=0.5) == 1 / 2.5


def test_runs_of_other_lengths_are_left_out_and_named():
    known, others = planned_runs(summarise(several()), COSTS)
    assert {run.config.num_speculative_tokens for run in known} == {4, 8}
    assert [config.num_speculative_tokens for config in others] == [0, 2]
    with pytest.raises(ValueError, match="the costs are those of 4, 8 proposals, but the runs have 2"):
        planned_runs(summarise([made("lossless", 2)]), COSTS)


@pytest.mark.parametrize("given", [{"latency": 0.0}, {"latency": 1.0, "share": 1.0}])
def test_a_goal_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match="must be in"):
        Goal(**given)
