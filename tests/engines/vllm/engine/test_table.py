"""Benchmarks on a real engine of the bundled pair: rules, loads and counts of a small table, and what steps take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

BENCHMARKS = Path(__file__).resolve().parents[4] / "benchmarks"
ARGUMENTS = (
    "--target bundled --draft bundled:worded --dtype float32 --loops vllm --proposals 3 --drafting likeliest "
    "--sampling paper --at-once 1 3 --prompts 2 --tokens 12 --threads 1"
)  # fmt: skip


def measured(script: str, output: Path, *arguments: str) -> dict:
    command = [sys.executable, str(BENCHMARKS / script), *arguments, "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(output.read_text())


def test_steps_with_each_rule_are_timed_beside_steps_without(tmp_path: Path) -> None:
    arguments = ["--pairs=2", "--requests=2", "--steps=1", "--proposals=2"]
    stored = measured("vllm_overhead.py", tmp_path / "overhead.json", *arguments)
    assert {name: len(pairs) for name, pairs in stored["pairs"].items()} == dict.fromkeys(stored["added"], 2)
    for name, added in stored["added"].items():
        ratios = [own / plain for plain, own in stored["pairs"][name]]
        assert min(ratios) <= added["ratio"][0] <= max(ratios)
    assert stored["vocabulary"] == 1003


def test_a_small_table_is_measured(tmp_path: Path) -> None:
    memory = ["--engine-args", '{"gpu_memory_utilization": 0.2}']
    stored = measured("vllm_table.py", tmp_path / "table.json", *ARGUMENTS.split(), *memory)
    assert [each["started"] for each in stored["starts"]] == ["vllm 0", "vllm likeliest 3"]
    cells = {(each["rule"], each["at_once"]): each for each in stored["answers"]}
    assert len(cells) == 5 * 2
    for (rule, _), cell in cells.items():
        assert sorted(cell["prompt"]) == ["word_problems/test-0-0", "word_problems/test-0-1"]
        for tokens, steps, accepted in zip(cell["tokens"], cell["steps"], cell["accepted"], strict=True):
            assert 0 < tokens <= 12
            assert (steps == 0) == (rule == "no draft")
            assert 0 <= accepted <= 3 * steps
            assert steps == 0 or tokens <= 1 + steps + accepted  # the first token comes with the prompt
    assert {row["rule"] for row in stored["summary"]["all"]["best"]} == {rule for rule, _ in cells}
