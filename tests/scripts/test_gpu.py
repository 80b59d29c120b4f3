"""The command that checks and measures a GPU, in small on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.scripts import benchmark, run_benchmark

from cactus_decoding import load_pair
from cactus_decoding.core.rules import RULES

gpu = benchmark("gpu")


def test_every_rule_is_asked_in_every_way() -> None:
    names = gpu.spellings()
    assert {name.partition(":")[0] for name in names} == {*RULES}
    rows = gpu.decisions(torch.device("cpu"), load_pair(), 1100, 2)
    assert all(row["same"] == row["of"] == 2 for row in rows)
    assert {row["way"] for row in rows} == {"batched", *gpu.WAYS}
    # some rules are for temperature 0 alone
    assert {(row["dtype"], row["rule"]) for row in rows if row["way"] in ("walk", "walk, temperature 0")} == {
        (dtype, name) for dtype in ("float32", "bfloat16") for name in names
    }


def test_devices_that_disagree_fail_the_command() -> None:
    rows = [{"dtype": "float32", "way": "walk", "rule": "lossless", "same": 100, "of": 100}]
    fine = {"same": 8, "of": 8}
    assert gpu.agree({"decisions": rows, "greedy_answers": fine})
    assert not gpu.agree({"decisions": rows, "greedy_answers": {"same": 7, "of": 8}})
    assert not gpu.agree({"decisions": [{**rows[0], "same": 97}], "greedy_answers": fine})


@pytest.mark.slow
def test_the_command_runs_in_small_on_a_cpu(tmp_path: Path) -> None:
    done = run_benchmark("gpu.py", "--device", "cpu", "--small", "--output", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert results["greedy_answers"] == {"same": 2, "of": 2}
    speed = results["speed"]["small with tiny"]
    assert speed["summary"]["prompts"] == 2
    assert {"plain", "generate", "assisted|3", "Cactus 1|1", "clamped 2, digits protected|3"} <= {
        *speed["summary"]["cells"]
    }
    assert (tmp_path / "gpu.svg").read_text().startswith("<?xml")
    assert "over plain" in done.stdout


def test_a_machine_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run_benchmark("gpu.py")
    assert done.returncode == 2
    assert "no GPU that PyTorch can use" in done.stderr
