"""What steps take: measured tables and GPUs on paper."""

from __future__ import annotations

import json

import pytest

from studies.planning.costs import GPUS, Paper, StepTimes, read_costs, read_paper


def test_times_are_linear_between_what_is_known():
    times = StepTimes({4: 2.0, 2: 1.0, 8: 6.0})
    assert [times(batch) for batch in (1, 2, 3, 4, 6, 8, 10)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0]


def test_one_known_size_grows_in_proportion_and_a_falling_table_does_not_fall_on():
    assert StepTimes({2: 1.0})(4) == 2.0
    assert StepTimes({1: 2.0, 2: 1.0})(10) == 1.0


def test_a_file_of_measured_times(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"steps": {"0": {"1": 0.01}, "6": {"1": 0.02, "8": 0.05}}, "prompt": 0.004}))
    costs = read_costs(path)
    assert (sorted(costs.steps), costs.steps[6](8), costs.prompt) == ([0, 6], 0.05, 0.004)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no", "costs must be written as"),
        ("[]", "costs must be written as"),
        ('{"steps": {}}', "costs must be written as"),
        ('{"steps": {"6": {}}}', "costs must be written as"),
        ('{"steps": {"6": {"1": 1}}, "promt": 0.1}', "costs must be written as"),
        ('{"steps": {"6": {"0": 1}}}', "batch sizes at least 1"),
        ('{"steps": {"6": {"1": -1}}}', "seconds of a step must be in"),
        ('{"steps": {"6": {"1": 1}}, "prompt": NaN}', "prompt must be in"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path, content, message):
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_costs(path)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_small_batch_waits_for_memory_and_a_large_one_for_arithmetic(gpu):
    paper = Paper(gpu, target=8e9, cache_bytes=1e5, context=100, efficiency=0.5)
    costs = paper.costs({3}, max_batch=4096)
    limits = GPUS[gpu]
    assert costs.steps[3](1) == pytest.approx((16e9 + 1e7) / limits.bandwidth / 0.5, rel=1e-12)
    assert costs.steps[3](4096) == pytest.approx(2 * 8e9 * 4096 * 4 / limits.operations / 0.5, rel=1e-12)


def test_prompts_are_read_by_both_models():
    costs = Paper("h100", target=8e9, draft=1e9, prompt=100, efficiency=1).costs({1}, max_batch=1)
    assert costs.prompt == pytest.approx(2 * 100 * 9e9 / 989e12, rel=1e-12)


def test_a_gpu_on_paper_is_spelled_by_its_numbers():
    assert read_paper("gpu=h100, target=8e9,draft=0.6e9") == Paper("h100", target=8e9, draft=0.6e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu=h1000,target=8e9", "gpu must be one of"),
        ("gpu=h100", "needs target"),
        ("gpu=h100,target=0", "target must be in"),
        ("gpu=h100,target=8e9,efficiency=2", "efficiency must be in"),
        ("gpu=h100,target=8e9,speed=2", "but 'speed=2' is given"),
        ("gpu=h100,target=8e9,target=9e9", "at most once, but 'target=9e9' is given"),
    ],
)
def test_a_wrong_gpu_on_paper_says_what_is_allowed(text, message):
    with pytest.raises(ValueError, match=message):
        read_paper(text)
