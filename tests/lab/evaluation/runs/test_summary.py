"""Summaries of result files: every metric by hand on a small case, and the baseline that is chosen."""

from __future__ import annotations

import math

import pytest
from support.result_files import config_of, made, several
from support.tables import all_of

from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.runs.summary import METRICS, NAMES, pass_at, summarise
from cactus_decoding.lab.reporting.report import with_interval

CONFIG = config_of(task="sums", target="t", draft="d", num_speculative_tokens=4, problems=4)


def changed(config: RunConfig, **fields) -> RunConfig:
    return config_of(**config.as_dict() | fields)


def result(config: RunConfig, *, seconds, right=(True, True, True, False), scale=1, **columns) -> RunResult:
    answers = {
        "id": ["a", "b", "c", "d"],
        "group": ["x"] * 4,
        "right": list(right),
        "finish_reason": ["stop", "stop", "stop", "length"],
        "generated": [10 * scale, 20 * scale, 30 * scale, 40 * scale],
        "steps": [4, 8, 12, 16],
        "drafted": [16, 32, 48, 64],
        "accepted": [8, 8, 24, 40],
        "relaxed": [0, 4, 4, 12],
        "recovered": [2, 2, 2, 2],
        "bonus": [2, 6, 10, 14],
        "seconds": [seconds] * 4,
        "metered": [10, 10, 10, 10],
        "nats": [0.0, 1.0, 2.0, 3.0],
        "tv": [0.5, 0.5, 1.0, 2.0],
        "max_log_ratio": [0.0, 0.5, 1.0, math.log(8)],
    }
    return RunResult(config, answers | columns, {})


LOSSLESS = [
    result(changed(CONFIG, num_speculative_tokens=0), seconds=0.5),
    result(changed(CONFIG, num_speculative_tokens=2), seconds=1.5),
    result(CONFIG, seconds=2.0, recovered=[4, 4, 4, 4]),
    result(changed(CONFIG, num_speculative_tokens=8), seconds=1.0, right=(True,) * 4),
]
RULE = changed(CONFIG, rule="cactus:delta=1.0")


def summary(results, config):
    (found,) = [each for each in summarise(results) if each.config == config]
    return found


@all_of("logs, value, shown", [
    ([0.0, math.inf], math.inf, "∞"), ([1e3, 0.0], math.inf, "∞"), ([700.0, 0.0], math.exp(700), "1.0e+304"),
    ([0.0, math.log(8)], 8.0, "8.0"),
])  # fmt: skip
def test_an_infinite_likelihood_ratio_is_shown_as_one_and_a_large_one_is_not(logs, value, shown):
    answers = result(RULE, seconds=1.0, max_log_ratio=[*logs, 0.0, 0.0])
    interval = summary([*LOSSLESS, answers], RULE).metrics["max_likelihood_ratio"]
    assert interval.value == pytest.approx(value)
    assert not interval.has_ends
    assert with_interval(interval, 1) == shown


def test_every_metric_by_hand():
    metrics = summary([*LOSSLESS, result(RULE, seconds=1.2, scale=2)], RULE).metrics
    expected = {
        "score": 0.75, "score_difference": -0.25, "truncated": 0.25, "truncated_difference": 0.0,
        "acceptance_length": 3.0, "accepted_per_step": 2.0, "acceptance_rate": 0.5, "relaxed_rate": 0.25,
        "rejections_ratio": 0.5, "tokens_per_answer": 50.0, "length_ratio": 2.0,
        "steps_per_answer": 10.0, "steps_ratio": 1.0, "seconds_per_answer": 1.2, "seconds_ratio": 1.2,
        "seconds_ratio_to_target_alone": 2.4, "tokens_per_second": 200 / 4.8,
        "nats_per_token": 6 / 200, "nats_per_answer": 1.5, "tv_per_position": 0.1, "max_likelihood_ratio": 8.0,
    }  # fmt: skip
    of_trees = {"nodes_per_step", "seconds_ratio_to_best_tree"}
    of_samples = {name for name in NAMES if name.startswith("pass_at_")}
    of_servers = {"first_seconds_per_answer"}
    assert set(expected) | of_trees | of_samples | of_servers == set(NAMES)
    assert all(metrics[name] is None for name in of_trees | of_samples | of_servers)
    served = summary([*LOSSLESS, result(RULE, seconds=1.2, first_seconds=[0.1, 0.2, 0.3, 0.4])], RULE)
    assert served.known("first_seconds_per_answer").value == pytest.approx(0.25)
    assert {name: metrics[name].value for name in expected} == pytest.approx(expected)
    assert not any(metrics[name].has_ends for name in set(METRICS) & set(expected))  # four problems
    baseline = summary(LOSSLESS, LOSSLESS[3].config).metrics  # against itself: nothing is estimated
    for name, value in (("score_difference", 0.0), ("seconds_ratio", 1.0)):
        assert (baseline[name].value, baseline[name].has_ends) == (pytest.approx(value), False)
    for found in summarise(several()):
        for interval in found.metrics.values():
            assert interval is None or interval.low <= interval.value <= interval.high or not interval.has_ends


def test_the_baseline_is_lossless_at_its_fastest_draft_length():
    found = summary([*LOSSLESS, result(RULE, seconds=1.2)], RULE)
    assert found.baseline.config.num_speculative_tokens == 8  # not the target alone, though that is faster here
    assert summary([LOSSLESS[0]], LOSSLESS[0].config).baseline.config.num_speculative_tokens == 0
    assert summary([result(RULE, seconds=1.2)], RULE).baseline is None
    for other in ({"task": "else"}, {"draft": "ngram"}, {"temperature": 0.6}, {"top_p": 0.9}, {"engine": "vllm"}):
        elsewhere = [result(changed(each.config, **other), seconds=0.1) for each in LOSSLESS]
        assert summary([*elsewhere, result(RULE, seconds=1.2)], RULE).baseline is None
    twice, others = [LOSSLESS[0], LOSSLESS[0]], [LOSSLESS[0], result(RULE, seconds=1.0, id=["a", "b", "c", "e"])]
    for results, said in ((twice, "two results of the run"), (others, "different problems")):
        with pytest.raises(ValueError, match=said):
            summarise(results)


def test_a_tree_is_compared_with_lossless_at_its_best_chain_and_at_its_best_tree():
    tree = changed(CONFIG, num_speculative_tokens=None, tree="static=2.2")
    slow = changed(CONFIG, num_speculative_tokens=None, tree="static=4.4", verification="joint")
    ours = changed(RULE, num_speculative_tokens=None, tree="static=2.2")
    results = [*LOSSLESS, result(tree, seconds=0.8), result(slow, seconds=0.9), result(ours, seconds=0.6)]
    found = summary(results, ours)
    assert found.baseline.config.num_speculative_tokens == 8  # a chain, though a tree is faster
    assert found.best_tree.config == tree
    assert found.metrics["seconds_ratio"].value == pytest.approx(0.6)
    assert found.metrics["seconds_ratio_to_best_tree"].value == pytest.approx(0.75)
    assert found.metrics["nodes_per_step"].value == 4.0  # 160 proposals in 40 steps
    chain = summary(results, CONFIG)
    assert chain.best_tree.config == tree
    assert chain.metrics["nodes_per_step"] is None
    assert summary([result(tree, seconds=1), result(ours, seconds=2)], ours).baseline.config == tree


def test_coupled_runs_are_compared_with_coupled_runs_and_others_with_others():
    def coupled(each: RunResult) -> RunConfig:
        return changed(each.config, verification="coupled")

    # lossless is best at 8 proposals by token, and at 2 if coupled
    seconds = {0: 0.6, 2: 0.9, 4: 2.0, 8: 1.4}
    shared = [result(coupled(each), seconds=seconds[each.config.num_speculative_tokens]) for each in LOSSLESS]
    ours = result(changed(RULE, rule="clamped:width=1.0", verification="coupled"), seconds=0.9)
    results = [*shared, *LOSSLESS, ours, result(RULE, seconds=1.2)]
    for run, baseline, ratio, to_alone in (
        (ours.config, coupled(LOSSLESS[1]), 1.0, 1.5),
        (RULE, LOSSLESS[3].config, 1.2, 2.4),
    ):
        found = summary(results, run)
        assert found.baseline.config == baseline
        assert found.known("seconds_ratio").value == pytest.approx(ratio)
        assert found.known("seconds_ratio_to_target_alone").value == pytest.approx(to_alone)
    # what is not there twice is compared with all the same
    assert summary([*LOSSLESS, ours], ours.config).baseline.config.num_speculative_tokens == 8
    alone = summary([shared[0], *LOSSLESS[1:], result(RULE, seconds=1.2)], RULE)
    assert alone.baseline.config.num_speculative_tokens == 8
    assert alone.known("seconds_ratio_to_target_alone").value == pytest.approx(2.0)


def test_seeds_are_averaged_by_problem():
    again = changed(RULE, seed=1)
    results = [result(RULE, seconds=1.0), result(again, seconds=3.0, right=(False,) * 4)]
    found = summary(results, RULE)
    assert found.seeds == [0, 1]
    assert found.metrics["score"].value == pytest.approx(0.375)
    assert found.metrics["seconds_per_answer"].value == pytest.approx(2.0)


def test_what_is_unknown_is_none_and_what_is_unbounded_is_infinite():
    unscored = result(RULE, seconds=1.0, right=(None,) * 4, nats=[0.0, 1.0, math.inf, 2.0])
    metrics = summary([unscored], RULE).metrics
    assert metrics["score"] is None
    assert metrics["score_difference"] is None
    assert metrics["length_ratio"] is None
    assert metrics["nats_per_answer"].value == math.inf
    bare = RunResult(RULE, {k: v for k, v in unscored.answers.items() if k not in ("nats", "tv")}, {})
    assert summary([bare], RULE).metrics["nats_per_token"] is None


@pytest.mark.parametrize("how", [{"verification": "coupled"}, {"temperature": 0}])
def test_texts_that_are_the_same_by_definition_differ_by_nothing(how):
    results = [result(changed(each.config, **how), seconds=each.answers["seconds"][0]) for each in LOSSLESS]
    relaxed = result(changed(RULE, **how | {"rule": "clamped:width=1.0"}), seconds=1.0)
    for each in (*results, relaxed):
        difference = summary([*results, relaxed], each.config).known("score_difference")
        assert (difference.value, difference.has_ends) == (0.0, each is relaxed)
    # texts that part all the same, as rounding may make them, are compared as others are
    other = result(results[0].config, seconds=0.5, right=(False,) * 4)
    assert summary([other, *results[1:]], other.config).known("score_difference").has_ends


def test_ties_have_no_interval_of_width_zero():
    results = several(problems=12)
    for found in summarise(results):
        for name, interval in found.metrics.items():
            if interval is not None and name != "max_likelihood_ratio":
                assert interval.low < interval.high or not interval.has_ends, (name, found.config.label)


def test_pass_at_k_is_unbiased():
    # of all ways to draw k of n answers, those with a right one among them
    assert pass_at([[1, 0, 0, 0], [1, 1, 0, 0]], 2).tolist() == pytest.approx([3 / 6, 5 / 6])
    assert pass_at([[0, 0], [1, 1]], 2).tolist() == [0, 1]
    assert pass_at([[1, 0, 1]], 1).tolist() == pytest.approx([2 / 3])


def test_several_seeds_say_how_often_one_of_k_answers_is_right():
    results = [made("lossless", 4, problems=8, seed=seed, right=0.5) for seed in range(3)]
    for seed, result in enumerate(results):
        result.answers["right"][:] = [place % 3 <= seed for place in range(8)]
    (found,) = summarise(results)
    assert found.metrics["score"].value == pytest.approx((3 * 3 + 3 * 2 + 2 * 1) / 24)
    assert found.metrics["pass_at_2"].value == pytest.approx((3 + 3 + 2 * (2 / 3)) / 8)
    assert found.metrics["pass_at_5"] is None
