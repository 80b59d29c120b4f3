"""`cactus calibrate`: a recommendation by score or by nats, and mistakes in one sentence."""

from __future__ import annotations

import json

import pytest
from support.result_files import made, several, write


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
    assert kept["advice"][0]["flags"] == "--rule clamped:width=1.0 --num-speculative-tokens 4"
    assert "Use: --rule clamped:width=1.0 --num-speculative-tokens 4" in out
    code, out, err = run(*command, "--protect", "digits")  # which none of them does
    assert code == 0, err
    assert "no other rule was measured" in " ".join(out.split())


def test_the_command_recommends_a_protected_rule_by_score(run, tmp_path):
    digits = {"protect": "digits|[+-]", "protect_threshold": 0.05, "lossless_tokens": 0, "relax_within": None}
    results = [made("lossless", 4), made("clamped:width=3.0", 6, seconds=0.8, **digits),
               made("clamped:width=3.0", 6, seconds=0.7)]  # fmt: skip
    command = ["calibrate", "--max-score-drop", "0.07", "--results", str(write(tmp_path / "r.jsonl", results))]
    for more, expected in (
        ([], "--rule clamped:width=3.0 --num-speculative-tokens 6"),
        (
            ["--protect", "digits|[+-]", "--protect-threshold", "0.05"],
            "--rule clamped:width=3.0 --protect 'digits|[+-]' --protect-threshold 0.05 --num-speculative-tokens 6",
        ),
        (["--protect", "digits"], "--rule lossless --num-speculative-tokens 4"),
        (["--protect", "none"], "--rule clamped:width=3.0 --num-speculative-tokens 6"),
    ):
        code, out, err = run(*command, "--task", "sums", *more)
        assert code == 0, err
        assert out.splitlines()[1] == f"Use: {expected}"


def test_the_command_searches_protected_rules_by_nats(run, tmp_path):
    rows, output = tmp_path / "f.safetensors", tmp_path / "advice.json"
    code, out, err = run("frontier", "--output", str(tmp_path / "f.json"), "--rows", str(rows), "--positions", "40",
                         "--family", "clamped", "--points", "2", "--num-speculative-tokens", "2", "--protect",
                         "digits", "--temperature", "0.8")  # fmt: skip
    assert code == 0, err
    assert "clamped:width=50.0 protecting digits" in out
    points = json.loads((tmp_path / "f.json").read_text())["points"]
    assert [point.get("protect") for point in points] == [None, None, None, None, "digits", "digits"]
    command = ["calibrate", "--max-nats", "0.05", "--rows", str(rows), "--family", "clamped", "--rounds", "2",
               "--num-speculative-tokens", "2", "--output", str(output)]  # fmt: skip
    for given, searched in (([], [None, "digits"]), (["--protect", "digits"], ["digits"])):
        code, out, err = run(*command, *given)
        assert code == 0, err
        kept = json.loads(output.read_text())
        assert sorted(str(point.get("protect")) for point in kept["candidates"][1:]) == sorted(map(str, searched))
        assert kept["flags"].startswith("--rule lossless --num-speculative-tokens")  # one problem supports nothing
        assert kept["flags"].endswith("--temperature 0.8")
    assert kept["best_within_limit"].endswith(" protecting digits")
    assert kept["speed"]["rule"]["protect"] == "digits"


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
        (["--max-nats", "-1"], "--max-nats must be "),
        (["--max-score-drop", "0.1"], "--max-score-drop needs --results"),
        (["--max-nats", "1", "--rows", "missing.safetensors"], "missing.safetensors: there is no such file"),
        (["--max-score-drop", "0.1", "--results", "missing.jsonl"], "missing.jsonl: No such file"),
        (["--max-score-drop", "0.1", "--results", "bad.jsonl"], "bad.jsonl, line 1: this is not"),
        (["--max-nats", "1", "--rows", "r.safetensors", "--protect", "("], "'(' is neither"),
        (["--max-nats", "1", "--rows", "r.safetensors", "--protect", ""], "protect must be one of digits"),
        (["--max-score-drop", "0.1", "--protect-threshold", "0.1"], "give --protect too"),
        (["--max-score-drop", "0.1", "--protect", "none", "--protect-threshold", "0.1"], "give --protect too"),
        (["--max-score-drop", "0.1", "--protect", "digits", "--protect-threshold", "2"], "--protect-threshold must"),
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
