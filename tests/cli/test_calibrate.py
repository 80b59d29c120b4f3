"""`cactus calibrate`: a recommendation by score or by nats, and mistakes in one sentence."""

from __future__ import annotations

import json

import pytest
from support.result_files import several, write


def test_the_command_recommends_by_score(run, tmp_path):
    results, output = write(tmp_path / "results.jsonl", several()), tmp_path / "advice.json"
    command = ["calibrate", "--max-score-drop", "0.07", "--results", str(results), "--task", "sums"]
    code, out, err = run(*command, "--output", str(output))
    assert code == 0, err
    assert "Recommended (sums, large with small, temperature 1): clamped:width=1.0 ×4" in out
    kept = json.loads(output.read_text())
    assert kept["advice"][0]["chosen"]["cell"]["rule"] == "clamped:width=1.0"
    assert kept["advice"][0]["settings_measured"] == 4
    assert "commit" in kept["provenance"]


@pytest.mark.slow
def test_the_command_recommends_by_nats(run, tmp_path):
    rows, output = tmp_path / "f.safetensors", tmp_path / "advice.json"
    code, _, err = run("frontier", "--output", str(tmp_path / "f.json"), "--rows", str(rows), "--positions", "80",
                       "--family", "clamped", "--points", "2", "--num-speculative-tokens", "4")  # fmt: skip
    assert code == 0, err
    command = ["calibrate", "--max-nats", "0.05", "--rows", str(rows), "--family", "clamped", "--family", "ensemble"]
    code, out, err = run(*command, "--num-speculative-tokens", "4", "--rounds", "2", "--output", str(output))
    assert code == 0, err
    assert "Recommended: " in out
    kept = json.loads(output.read_text())
    assert kept["best_within_limit"].startswith("clamped:width=")
    assert kept["candidates"][1]["kl"][0] <= 0.05
    lengths = [row["num_speculative_tokens"] for row in kept["speed"]["lossless"]["lengths"]]
    assert lengths == [0, 1, 2, 3, 4]
    code, _, err = run(*command, "--num-speculative-tokens", "9")
    assert code == 2
    assert "--num-speculative-tokens must be at most 4" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --max-nats (with --rows) or --max-score-drop (with --results)"),
        (["--max-nats", "1", "--max-score-drop", "0.1"], "give either --max-nats"),
        (["--max-nats", "1"], "--max-nats needs --rows"),
        (["--max-nats", "-1"], "'--max-nats'"),
        (["--max-score-drop", "0.1"], "--max-score-drop needs --results"),
        (["--max-nats", "1", "--rows", "missing.safetensors"], "missing.safetensors: there is no such file"),
        (["--max-score-drop", "0.1", "--results", "missing.jsonl"], "missing.jsonl: No such file"),
        (["--max-score-drop", "0.1", "--results", "bad.jsonl"], "bad.jsonl, line 1: this is not"),
        (["--max-nats", "1", "--output", "/missing/a.json"], "cannot write '/missing/a.json'"),
    ],
)
def test_mistakes_are_one_sentence(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    code, out, err = run("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
