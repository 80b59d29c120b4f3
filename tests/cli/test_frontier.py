"""`cactus frontier`: it records once and computes again, and finds mistakes before any work."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.mark.slow
def test_the_command_records_once_and_computes_again(run, tmp_path):
    output, picture = tmp_path / "f.json", tmp_path / "f.svg"
    command = ["frontier", "--output", str(output), "--picture", str(picture), "--positions", "60", "--points", "2"]
    command += ["--family", "clamped", "--family", "top_k", "--num-speculative-tokens", "4", "--top-p", "0.95"]
    code, out, err = run(*command)
    assert code == 0, err
    assert "clamped:width=50.0" in out
    assert "Recording" in err
    first, drawn = json.loads(output.read_text()), picture.read_bytes()
    assert first["visited"] >= 60
    assert first["recorded"]["arguments"]["task"] == "word_problems:split=validation"
    assert {"commit", "versions", "machine"} <= set(first["provenance"])
    assert [len(point["tokens_per_step"]) for point in first["points"]] == [4] * len(first["points"])
    code, _, err = run(*command)
    assert code == 0
    assert "Recording" not in err
    assert json.loads(output.read_text())["points"] == first["points"]
    assert picture.read_bytes() == drawn
    before = output.read_bytes()
    code, out, err = run(*command, "--seed", "3")
    assert (code, out) == (2, "")
    assert "was recorded with seed=0, but 3 is asked for" in err
    assert output.read_bytes() == before


def test_what_width_is_worth_is_told_where_it_is_asked(run, tmp_path):
    output, picture = tmp_path / "f.json", tmp_path / "f.svg"
    command = ["frontier", "--output", str(output), "--picture", str(picture), "--positions", "30", "--points", "2"]
    command += ["--family", "clamped", "--num-speculative-tokens", "3", "--children", "4"]
    code, out, err = run(*command)
    assert code == 0, err
    assert "1 of 2" in out
    assert "1 of 4" in out
    assert "1 of 8" not in out
    points = json.loads(output.read_text())["points"]
    assert {len(point[name]) for point in points for name in ("kept_by_children", "kept_by_fixed_children")} == {4}
    assert points[0]["kept_by_children"][0][0] == pytest.approx(points[0]["acceptance"][0], abs=1e-12)
    wide = picture.read_bytes()
    assert run(*command[:-2])[0] == 0
    assert len(picture.read_bytes()) < len(wide)


def test_one_problem_is_too_few_to_tell(run, tmp_path):
    output = tmp_path / "f.json"
    command = ["frontier", "--output", str(output), "--positions", "3", "--points", "2", "--family", "clamped"]
    code, out, err = run(*command, "--num-speculative-tokens", "2")
    assert code == 0, err
    assert json.loads(output.read_text())["problems"] == 1
    assert "fewer than 6 problems are too few to tell" in " ".join(out.split())
    assert "–" not in out  # no interval of width zero
    assert json.loads(output.read_text())["points"][0]["acceptance"][1:] == [None, None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "/missing/f.json"], "cannot write '/missing/f.json': its folder is missing"),
        (["--output", "f.json", "--rows", "f.json"], "outputs must be different files"),
        (["--output", "f.json", "--family", "cactis"], "unknown rule family 'cactis'"),
        (["--output", "f.json", "--task", "riddles"], "unknown task 'riddles'"),
        (["--output", "f.json", "--temperature", "0"], "the temperature must be above 0"),
        (["--output", "f.json", "--points", "1"], "--points must be "),
        (["--output", "f.json", "--protect", "["], "'[' is neither"),
        (["--output", "f.json", "--protect", "zzzz"], "'zzzz' matches none of the"),
        (["--output", "f.json", "--protect", "(?s)."], "matches all"),
        (["--output", "f.json", "--protect-threshold", "0.1"], "give --protect too"),
        (["--output", "f.json", "--target", "/missing", "--draft", "ngram"], "there is no folder '/missing'"),
    ],
)
def test_mistakes_are_found_before_any_work(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("frontier", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("cactus: ")
    assert list(tmp_path.iterdir()) == []
