"""`cactus plan`: tables, a picture and JSON."""

from __future__ import annotations

import json

from support.result_files import several, write

PAPER = "paper:gpu=h100,target=8e9,draft=0.6e9"


def test_the_command_writes_tables_picture_and_json(run, tmp_path):
    results = write(tmp_path / "a.jsonl", several())
    picture, found = tmp_path / "plan.svg", tmp_path / "plan.json"
    code, out, err = run("plan", str(results), "--costs", PAPER, "--rate", "20", "--rate", "2000", "--latency", "0.2",
                         "--picture", str(picture), "--output", str(found))  # fmt: skip
    assert code == 0
    assert "Simulating" in err
    assert "2000 requests a second, 95 % within 0.2 s" in out
    assert picture.read_text().count("<svg") == 1
    content = json.loads(found.read_text())
    assert len(content["plan"]) == 16
    assert content["provenance"]["arguments"]["costs"] == PAPER
    best = next(each for each in content["plan"] if each["rate"] == 2000.0)
    assert best["replicas"] >= 1
    assert best["latency_p95"] <= 0.2


def test_a_fixed_fleet_and_measured_costs(run, tmp_path):
    results = write(tmp_path / "a.jsonl", several())
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"steps": {"4": {"1": 0.01, "8": 0.02}}}))
    code, out, _ = run("plan", str(results), "--costs", str(costs), "--rate", "5", "--latency", "1", "--replicas", "3")
    assert code == 0
    assert "4 runs are left out: the costs do not tell what their steps take." in out


def test_the_costs_are_not_overwritten_whatever_their_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = write(tmp_path / "a.jsonl", several())
    content = json.dumps({"steps": {"4": {"1": 0.01, "8": 0.02}}})
    (tmp_path / "papers.json").write_text(content)
    given = ("--rate", "5", "--latency", "1", "--replicas", "3", "--output", "papers.json")
    code, _, err = run("plan", str(results), "--costs", "papers.json", *given)
    assert code == 2
    assert "papers.json" in err
    assert (tmp_path / "papers.json").read_text() == content
