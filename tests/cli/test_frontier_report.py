"""`cactus frontier` and `cactus report`: what they write, and mistakes in one sentence."""

from __future__ import annotations

import json

import pytest
from support.recorded_rows import frontier_file
from support.result_files import several, write

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
    rejected, accepted = first["rejections"]["rejected"][0], first["points"][0]["acceptance"][0]
    assert rejected == pytest.approx(1 - accepted, abs=1e-6)
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


def test_the_command_names_the_rule_to_type_within_a_limit(succeed, refused, tmp_path):
    rows = tmp_path / "f.safetensors"
    command = ["frontier", "--output", str(tmp_path / "f.json"), "--rows", str(rows), "--positions", "40", "--family",
               "clamped", "--points", "2", "--num-speculative-tokens", "2", "--protect", "digits"]  # fmt: skip
    out, _ = succeed(*command, "--at", "kl=0.05")
    assert "clamped:width=50.0 protecting digits" in out
    found = json.loads((tmp_path / "f.json").read_text())
    assert [point.get("protect") for point in found["points"]] == [None, None, None, None, "digits", "digits"]
    assert [point["family"] for point in found["points"]] == ["lossless", "limit", *["clamped"] * 4]
    assert found["at"]["limit"] == found["provenance"]["arguments"]["at"] == "kl=0.05"
    best = found["at"]["points"]
    assert {point.get("protect") for point in best} == {None, "digits"}
    assert all(point["kl"][0] <= 0.05 for point in best)
    assert best[0]["acceptance"][0] >= best[1]["acceptance"][0] > found["points"][0]["acceptance"][0]
    assert f"At kl=0.05: --rule {best[0]['rule']}" in out
    out, _ = succeed(*command, "--at", "acceptance=0")
    assert "At acceptance=0: --rule lossless" in out
    for wrong in ("kl=x", "acceptance=2", "kl=-1"):
        assert " must be " in refused(*command, "--at", wrong)


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
    alone = ("report", "--frontier", str(added), "--output", str(page), "--markdown", str(table))
    assert run(*alone) == (0, f"wrote {page} and {table}\n", "")
    assert page.read_text().count("<img") == 1
    for text in (page.read_text(), table.read_text()):
        assert "Where lossless rejects, by kind of token: " in text
        assert "punctuation and symbols" in text


def test_a_forecast_is_said_to_be_one_wherever_it_stands(run, succeed, tmp_path):
    output, costs = tmp_path / "f.json", tmp_path / "costs.json"
    profile = {"name": "a [large] GPU", "source": "timed by me", "pass_ms": {"1": 10, "8": 12}, "draft_ms": 1}
    costs.write_text(json.dumps({"profiles": [profile]}))
    command = ["frontier", "--output", str(output), "--positions", "30", "--points", "2", "--family", "clamped"]
    command += ["--num-speculative-tokens", "3", "--costs", str(costs), "--answer-tokens", "500"]
    out, _ = succeed(*command)
    assert "Forecast, not measured: a [large] GPU, answers of 500 tokens" in " ".join(out.split())
    assert "Forecast, not measured: a [large] GPU, flat passes" in " ".join(out.split())
    assert "Times are forecast, not measured" in out
    result = json.loads(output.read_text())
    lossless, found = result["points"][0], result["forecast"]
    assert found["note"].startswith("Times are forecast, not measured")
    assert found["sources"] == {"a [large] GPU": "timed by me"}
    best = found["profiles"]["a [large] GPU"][0]
    k = best["num_speculative_tokens"]
    step = 10 + 2 * k / 7 + k
    assert best["seconds_per_answer"][0] == pytest.approx(0.5 * step / lossless["tokens_per_step"][k - 1][0])
    costs.write_text("{}")
    assert run(*command)[::2] == (
        2,
        f"cactus: {costs}: a file of costs must be a JSON object with a list of 'profiles'\n",
    )
