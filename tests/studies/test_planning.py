"""The fewest replicas, which runs need them, and the script that says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.result_files import made, several, write
from support.scripts import ROOT, run_script

from cactus_decoding.lab.evaluation.runs.summary import summarise
from studies.planning.costs import ReplicaCosts, StepTimes
from studies.planning.fleet import Workload
from studies.planning.plan import main
from studies.planning.replicas import REQUESTS, Fleet, Goal, capacity, fewest, plan, planned_runs, steps_of

COSTS = ReplicaCosts({4: StepTimes({1: 0.01, 16: 0.04}), 8: StepTimes({1: 0.012, 16: 0.06})})
FLEET = Fleet(COSTS, max_batch=16)


@pytest.mark.parametrize("enough", [1, 2, 3, 7, 10, 100])
@pytest.mark.parametrize("least", [1, 2])
def test_the_fewest_are_found(enough, least):
    asked = []

    def served(count):
        asked.append(count)
        return count

    assert fewest(served, lambda count: count >= enough, least, 100) == (max(enough, least),) * 2
    assert min(asked) >= least
    assert max(asked) <= 100
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("least", [1, 7, 100])
def test_where_no_number_is_enough_the_search_ends_at_the_greatest(least):
    asked = []

    def served(count):
        assert count <= 100
        asked.append(count)
        return count

    assert fewest(served, lambda count: False, least, 100) is None
    assert asked[-1] == 100


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


def with_steps(steps):
    """Return a run whose answers take these steps."""
    result = made("lossless", 4)
    result.answers["steps"] = np.resize(steps, len(result.answers["steps"])).tolist()
    (run,) = summarise([result])
    return run


@pytest.mark.parametrize("seed", range(4))
def test_a_goal_between_what_was_recorded_and_what_is_drawn_has_an_end(seed):
    """A twentieth of the answers is slow: of those that are drawn more or less than a twentieth, as it happens."""
    run = with_steps([10] * 19 + [40])
    workload = Workload(1.0, steps_of(run), REQUESTS, seed)
    (found,) = plan([run], Fleet(COSTS, max_batch=16, seed=seed), [1.0], Goal(0.2))
    slow = np.mean(workload.drawn[1][workload.measured] == 40)
    assert (found.replicas is None) == (slow > 0.05)


def test_a_goal_that_only_an_answer_alone_keeps_is_kept_whatever_the_rounding():
    (run,) = summarise([made("lossless", 4)])  # ten steps of 10 ms, whose sum is not 0.1
    (found,) = plan([run], FLEET, [1.0], Goal(0.1))
    assert found.served.quantile(0.95) == pytest.approx(0.1)


def test_a_crowd_that_no_fleet_keeps_apart_has_no_number():
    """Who shares a step is late. As many replicas as requests: a tenth are busy, and one in a hundred finds two."""
    (run,) = summarise([made("lossless", 4)])
    (found,) = plan([run], FLEET, [2000.0], Goal(0.1, share=0.9999))
    assert (found.replicas, found.served) == (None, None)


def test_capacity_is_that_of_the_best_batch():
    assert capacity(StepTimes({1: 1.0, 2: 1.0, 4: 4.0}), 1.0, max_batch=4, prompt=0.0) == 2.0
    assert capacity(StepTimes({1: 1.0}), 2.0, max_batch=1, prompt=0.5) == 1 / 2.5


@pytest.mark.parametrize(("rate", "latency"), [(1e9, 10.0), (1e308, 10.0)])
@pytest.mark.parametrize("replicas", [None, 3])
def test_more_requests_than_can_be_simulated_are_refused(rate, latency, replicas):
    (run,) = summarise([made("lossless", 4)])
    slow = Fleet(ReplicaCosts({4: StepTimes({1: 1.0})}), max_batch=16)
    with pytest.raises(ValueError, match="are too many to simulate: at most 2,000,000"):
        plan([run], slow, [rate], Goal(latency), replicas=replicas)


def test_runs_of_other_lengths_are_left_out_and_named():
    known, others = planned_runs(summarise(several()), COSTS)
    assert {run.config.num_speculative_tokens for run in known} == {4, 8}
    assert [config.num_speculative_tokens for config in others] == [0, 2]
    with pytest.raises(ValueError, match="the costs are those of 4, 8 proposals, but the runs have 2"):
        planned_runs(summarise([made("lossless", 2)]), COSTS)
    with pytest.raises(ValueError, match="do not tell what a step of lossless ×2 takes"):
        plan(summarise([made("lossless", 2)]), FLEET, [1.0], Goal(1.0))


@pytest.mark.parametrize("given", [{"latency": 0.0}, {"latency": 1.0, "share": 1.0}])
def test_a_goal_that_is_none_is_refused(given):
    with pytest.raises(ValueError, match="must be in"):
        Goal(**given)


def test_the_script_prints_tables_and_writes_picture_and_result(tmp_path, capsys):
    results, picture, output = write(tmp_path / "a.jsonl", several()), tmp_path / "plan.svg", tmp_path / "plan.json"
    main([str(results), "--paper", "gpu=h100,target=8e9,draft=0.6e9", "--rates", "20", "2000", "--latency", "0.2",
          "--picture", str(picture), "--output", str(output)])  # fmt: skip
    assert "2000 requests a second, 95 % within 0.2 s" in capsys.readouterr().out
    assert picture.read_text().count("<svg") == 1
    content = json.loads(output.read_text())
    assert len(content["plan"]) == 16
    assert content["provenance"]["arguments"]["paper"].startswith("Paper(gpu='h100', target=8000000000.0")
    best = next(each for each in content["plan"] if each["rate"] == 2000.0)
    assert best["replicas"] >= 1
    assert best["latency_p95"] <= 0.2


def test_the_script_works_out_a_given_fleet_from_measured_costs(tmp_path, capsys):
    results, costs = write(tmp_path / "a.jsonl", several()), tmp_path / "costs.json"
    costs.write_text(json.dumps({"steps": {"4": {"1": 0.01, "8": 0.02}}}))
    main([str(results), "--costs", str(costs), "--rates", "5", "--latency", "1", "--replicas", "3"])
    out = capsys.readouterr().out
    assert "4 runs are left out: the costs do not tell what their steps take." in out
    assert [line.split("|")[2].strip() for line in out.splitlines() if "×4" in line] == ["3", "3", "3", "3"]


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_file(tmp_path: Path) -> None:
    page = ROOT / "docs" / "studies" / "planning.md"
    copy = Path(shutil.copy(page, tmp_path))
    done = run_script("studies.planning.check", "--only-render", "--page", copy)
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == page.read_text()
    drawn = Path("pictures", "planning", "plan-and-measured.svg")
    assert (tmp_path / drawn).read_text() == (page.parent / drawn).read_text()
