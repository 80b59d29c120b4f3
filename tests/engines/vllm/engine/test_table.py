"""`benchmarks/vllm_table.py` on a real engine: rules, loads and counts of a small table of the bundled pair."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "vllm_table.py"
ARGUMENTS = (
    "--target bundled --draft bundled:worded --dtype float32 --loops vllm --proposals 3 --drafting likeliest "
    "--sampling paper --at-once 1 3 --prompts 2 --tokens 12 --threads 1"
)  # fmt: skip


def test_a_small_table_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    command = [sys.executable, str(SCRIPT), *ARGUMENTS.split(), "--engine-args", '{"gpu_memory_utilization": 0.2}']
    done = subprocess.run(
        [*command, "--output", str(output)], capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads(output.read_text())
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
