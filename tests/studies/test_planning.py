"""The fewest replicas, which runs need them, and the script that says so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support.result_files import made, several, write

from cactus_decoding.lab.evaluation.runs.summary import summarise
from studies.planning.fleet import Workload, capacity, simulate, step_seconds
from studies.planning.plan import GPUS, Costs, Goal, Paper, main, plan, read_paper

COSTS = Costs({4: {1: 0.01, 16: 0.04}, 8: {1: 0.012, 16: 0.06}})


def test_one_fewer_breaks_the_promise():
    (run,) = summarise([made("lossless", 4)])
    goal = Goal(0.3)
    (found,) = plan([run], COSTS, 16, [400.0], goal)
    assert found.served.quantile(0.95) <= 0.3
    (fewer,) = plan([run], COSTS, 16, [400.0], goal, replicas=found.replicas - 1)
    assert fewer.served.quantile(0.95) > 0.3


def test_what_no_number_of_replicas_can_keep_is_said():
    (found,) = plan(summarise([made("lossless", 4)]), COSTS, 16, [20.0], Goal(0.05))
    assert (found.replicas, found.served) == (None, None)


def test_fewer_steps_take_fewer_replicas_and_come_first():
    fast = made("cactus:delta=1.0", 4)
    fast.answers["steps"] = [5] * len(fast.answers["steps"])
    runs = summarise([made("lossless", 4), fast])
    first, second = plan(runs, COSTS, 16, [2000.0], Goal(0.5))
    assert first.summary.config.rule == "cactus:delta=1.0"
    assert first.replicas < second.replicas


def test_capacity_is_that_of_the_best_batch():
    assert capacity(step_seconds({1: 1.0, 2: 1.0, 4: 4.0}, 4), 1.0, prompt=0.0) == 2.0
    assert capacity([0.0, 1.0], 2.0, prompt=0.5) == 1 / 2.5


def test_runs_of_other_lengths_are_left_out():
    found = plan(summarise(several()), COSTS, 16, [20.0], Goal(1.0))
    assert {each.summary.config.num_speculative_tokens for each in found} == {4, 8}
    with pytest.raises(ValueError, match="the costs are those of 4, 8 proposals, but the runs have 2"):
        plan(summarise([made("lossless", 2)]), COSTS, 16, [20.0], Goal(1.0))


def test_the_script_prints_tables_and_draws_a_picture(tmp_path, capsys):
    results, picture = write(tmp_path / "a.jsonl", several()), tmp_path / "plan.svg"
    given = [str(results), "--rates", "20", "2000", "--latency", "0.2"]
    main([*given, "--paper", "gpu=h100,target=8e9,draft=0.6e9", "--picture", str(picture)])
    said = capsys.readouterr().out
    assert "2000 requests a second, 95 % within 0.2 s" in said
    assert said.count("| lossless ×4 |") == 2
    assert picture.read_text().count("<svg") == 1
    for wrong, why in (("gpu=h1000,target=8e9", "gpu must be one of"), ("gpu=h100", "must have target")):
        with pytest.raises(SystemExit, match="2"):
            main([*given, "--paper", wrong])
        assert why in capsys.readouterr().err


def test_times_are_linear_between_what_is_known():
    assert step_seconds({4: 2.0, 2: 1.0, 8: 6.0}, 10) == [0.0, 1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert step_seconds({2: 1.0}, 4) == [0.0, 1.0, 1.0, 1.5, 2.0]


@pytest.mark.parametrize("gpu", GPUS)
def test_a_small_batch_waits_for_memory_and_a_large_one_for_arithmetic(gpu):
    paper = Paper(gpu, target=8e9, cache_bytes=1e5, context=100, efficiency=0.5)
    costs = paper.costs({3}, max_batch=4096)
    bandwidth, operations = GPUS[gpu]
    assert costs.steps[3][1] == pytest.approx((16e9 + 1e7) / bandwidth / 0.5, rel=1e-12)
    assert costs.steps[3][4096] == pytest.approx(2 * 8e9 * 4096 * 4 / operations / 0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu=h1000,target=8e9", "gpu must be one of"),
        ("gpu=h100", "must have target"),
        ("gpu=h100,target=0", "target must be in"),
        ("gpu=h100,target=8e9,efficiency=2", "efficiency must be in"),
        ("gpu=h100,target=8e9,speed=2", "no 'speed'; known are gpu, target"),
        ("gpu=h100,target=8e9,target=9e9", "each name once, but"),
    ],
)
def test_a_wrong_gpu_on_paper_says_what_is_allowed(text, message):
    with pytest.raises((ValueError, TypeError), match=message):
        read_paper(text)


@dataclass(frozen=True)
class Timetable(Workload):
    """Requests at given times, with given steps."""

    times: tuple[float, ...] = ()

    @property
    def drawn(self):
        return np.array(self.times), self.steps


def timetable(times, steps):
    return Timetable(1.0, np.array(steps), len(times), times=times)


SECONDS = (0.0, 1.0, 1.5, 2.5, 3.5)


def test_who_arrives_during_a_step_joins_the_next_one():
    found = simulate(timetable((0.0, 0.5), [2, 1]), SECONDS, replicas=1, prompt=0.25)
    # a step of one and a prompt until 1.25; then one of two and a prompt, until 3
    assert found.latencies.tolist() == [3.0, 2.5]


def test_a_full_batch_makes_others_wait_in_turn():
    found = simulate(timetable((0.0, 0.25, 0.5), [2, 1, 1]), SECONDS[:2], replicas=1)
    assert found.latencies.tolist() == [2.0, 2.75, 3.5]


def test_whoever_is_done_makes_room_at_once():
    found = simulate(timetable((0.0, 0.25, 0.5), [2, 2, 1]), SECONDS[:3], replicas=1)
    # 0: alone until 1; 0 and 1 until 2.5, which ends 0; 1 and 2 until 4
    assert found.latencies.tolist() == [2.5, 3.75, 3.5]


def test_waiting_is_what_queueing_theory_says():
    """One request at a time, alike long: M/D/1, whose mean wait is rho D / (2 (1 - rho)) (Pollaczek and Khinchine).

    The mean of 60 independent runs is compared at 4.5 of its standard errors: a false alarm comes in 7 of a million
    seeds. Twice the wait, which exponential work would have, is refuted.
    """
    rho, service = 0.6, 10 * 0.01
    means = [
        simulate(Workload(rho / service, np.array([10]), 3000, seed), [0.0, 0.01], replicas=1).latencies.mean()
        for seed in range(60)
    ]
    mean, error = np.mean(means), np.std(means, ddof=1) / np.sqrt(len(means))
    wait = rho * service / (2 * (1 - rho))
    assert abs(mean - service - wait) < 4.5 * error
    assert abs(mean - service - 2 * wait) > 4.5 * error
