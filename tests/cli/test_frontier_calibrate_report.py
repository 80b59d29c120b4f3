"""`cactus frontier`, `cactus calibrate` and `cactus report`: what they write, and mistakes in one sentence."""

from __future__ import annotations

import json

import pytest
from support.recorded_rows import frontier_file
from support.result_files import made, several, write

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.mark.slow
def test_the_command_records_once_and_computes_again(run, succeed, tmp_path):
    output, picture = tmp_path / "f.json", tmp_path / "f.svg"
    command = ["frontier", "--output", str(output), "--picture", str(picture), "--positions", "60", "--points", "2"]
    command += ["--family", "clamped", "--family", "top_k", "--num-speculative-tokens", "4", "--top-p", "0.95"]
    out, err = succeed(*command)
    assert "clamped:width=50.0" in out
    assert "Recording" in err
    first, drawn = json.loads(output.read_text()), picture.read_bytes()
    assert first["visited"] >= 60
    assert first["recorded"]["arguments"]["task"] == "word_problems:split=validation"
    assert {"commit", "versions", "machine"} <= set(first["provenance"])
    assert [len(point["tokens_per_step"]) for point in first["points"]] == [4] * len(first["points"])
    _, err = succeed(*command)
    assert "Recording" not in err
    assert json.loads(output.read_text())["points"] == first["points"]
    assert picture.read_bytes() == drawn
    before = output.read_bytes()
    code, out, err = run(*command, "--seed", "3")
    assert (code, out) == (2, "")
    assert "was recorded with seed=0, but 3 is asked for" in err
    assert output.read_bytes() == before


def test_what_width_is_worth_is_told_where_it_is_asked(run, succeed, tmp_path):
    output, picture = tmp_path / "f.json", tmp_path / "f.svg"
    command = ["frontier", "--output", str(output), "--picture", str(picture), "--positions", "30", "--points", "2"]
    command += ["--family", "clamped", "--num-speculative-tokens", "3", "--children", "4"]
    out, _ = succeed(*command)
    assert "1 of 2" in out
    assert "1 of 4" in out
    assert "1 of 8" not in out
    points = json.loads(output.read_text())["points"]
    assert {len(point[name]) for point in points for name in ("kept_by_children", "kept_by_fixed_children")} == {4}
    assert points[0]["kept_by_children"][0][0] == pytest.approx(points[0]["acceptance"][0], abs=1e-12)
    wide = picture.read_bytes()
    assert run(*command[:-2])[0] == 0  # nobody pays who does not ask
    assert len(picture.read_bytes()) < len(wide)
    assert "kept_by_children" not in json.loads(output.read_text())["points"][-1]


def test_one_problem_is_too_few_to_tell(succeed, tmp_path):
    output = tmp_path / "f.json"
    command = ["frontier", "--output", str(output), "--positions", "3", "--points", "2", "--family", "clamped"]
    out, _ = succeed(*command, "--num-speculative-tokens", "2")
    assert json.loads(output.read_text())["problems"] == 1
    assert "fewer than 6 problems are too few to tell" in " ".join(out.split())
    assert "–" not in out  # no interval of width zero
    assert json.loads(output.read_text())["points"][0]["acceptance"][1:] == [None, None]


def test_the_command_recommends_by_score(run, succeed, tmp_path):
    results, output = write(tmp_path / "results.jsonl", several()), tmp_path / "advice.json"
    command = ["calibrate", "--max-score-drop", "0.07", "--results", str(results), "--task", "sums"]
    out, err = succeed(*command, "--output", str(output))
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


def test_the_command_recommends_a_protected_rule_by_score(succeed, tmp_path):
    digits = {"protect": "digits|[+-]", "protect_threshold": 0.05, "lossless_tokens": 0, "relax_within": None}
    results = [made("lossless", 4), made("clamped:width=3.0", 6, seconds=0.8, **digits),
               made("clamped:width=3.0", 6, seconds=0.7)]  # fmt: skip
    command = ["calibrate", "--max-score-drop", "0.07", "--results", str(write(tmp_path / "r.jsonl", results))]
    protected = "--protect 'digits|[+-]' --protect-threshold 0.05"
    for more, rule, length in (
        ([], "clamped:width=3.0", 6),
        (["--protect", "digits|[+-]", "--protect-threshold", "0.05"], f"clamped:width=3.0 {protected}", 6),
        (["--protect", "digits"], "lossless", 4),
        (["--protect", "none"], "clamped:width=3.0", 6),
    ):
        out, _ = succeed(*command, "--task", "sums", *more)
        assert out.splitlines()[1] == f"Use: --rule {rule} --num-speculative-tokens {length}"


def test_the_command_searches_protected_rules_by_nats(succeed, tmp_path):
    rows, output = tmp_path / "f.safetensors", tmp_path / "advice.json"
    out, _ = succeed("frontier", "--output", str(tmp_path / "f.json"), "--rows", str(rows), "--positions", "40",
                       "--family", "clamped", "--points", "2", "--num-speculative-tokens", "2", "--protect",
                       "digits", "--temperature", "0.8")  # fmt: skip
    assert "clamped:width=50.0 protecting digits" in out
    points = json.loads((tmp_path / "f.json").read_text())["points"]
    assert [point.get("protect") for point in points] == [None, None, None, None, "digits", "digits"]
    assert [point["family"] for point in points] == ["lossless", "limit", *["clamped"] * 4]
    command = ["calibrate", "--max-nats", "0.05", "--rows", str(rows), "--family", "clamped", "--rounds", "2",
               "--num-speculative-tokens", "2", "--output", str(output)]  # fmt: skip
    for given, searched in (([], [None, "digits"]), (["--protect", "digits"], ["digits"])):
        out, _ = succeed(*command, *given)
        kept = json.loads(output.read_text())
        assert sorted(str(point.get("protect")) for point in kept["candidates"][1:]) == sorted(map(str, searched))
        assert kept["flags"].startswith("--rule lossless --num-speculative-tokens")  # one problem supports nothing
        assert kept["flags"].endswith("--temperature 0.8")
    assert kept["best_within_limit"].endswith(" protecting digits")
    assert kept["speed"]["rule"]["protect"] == "digits"


@pytest.mark.slow
def test_the_command_recommends_by_nats(succeed, refused, tmp_path):
    rows, output = tmp_path / "f.safetensors", tmp_path / "advice.json"
    succeed("frontier", "--output", str(tmp_path / "f.json"), "--rows", str(rows), "--positions", "80",
                     "--family", "clamped", "--points", "2", "--num-speculative-tokens", "4")  # fmt: skip
    command = ["calibrate", "--max-nats", "0.05", "--rows", str(rows), "--family", "clamped", "--family", "ensemble"]
    out, _ = succeed(*command, "--num-speculative-tokens", "4", "--rounds", "2", "--output", str(output))
    assert "Recommended: " in out
    kept = json.loads(output.read_text())
    assert kept["best_within_limit"].startswith("clamped:width=")
    assert kept["candidates"][1]["kl"][0] <= 0.05
    lengths = [row["num_speculative_tokens"] for row in kept["speed"]["lossless"]["lengths"]]
    assert lengths == [0, 1, 2, 3, 4]
    assert "--num-speculative-tokens must be at most 4" in refused(*command, "--num-speculative-tokens", "9")


def test_the_command_writes_page_and_table(run, tmp_path):
    first, second = write(tmp_path / "a.jsonl", several()), write(tmp_path / "b.jsonl", several(draft="ngram"))
    page, table = tmp_path / "report.html", tmp_path / "table.md"
    added = frontier_file(tmp_path / "frontier.json")
    code, out, err = run("report", str(first), str(second), "--output", str(page), "--markdown", str(table),
                         "--frontier", str(added))  # fmt: skip
    assert (code, err) == (0, "")
    assert str(page) in out
    assert page.read_text().count("<img") == 10
    assert "draft ngram" in table.read_text()
