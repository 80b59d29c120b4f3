"""The page on what relaxing costs and brings: forecasts by hand, and answers that go on where they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import copied_page, run_script

from cactus_decoding import parse_rule
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.reporting.report import length_warnings
from scripts.pages import ROOT
from scripts.results import read
from studies.relaxing.real import EQUAL, MATTER, PAGE, RESULTS, TIMED, configs, foreseen, lengths, stored_answers, times
from studies.stored import read_results


def test_forecasts_of_what_was_timed_are_those_by_hand():
    stored = read(TIMED)
    passes, draft = dict(stored["pass_times"]["target"]), stored["pass_times"]["draft"]
    found = {each.setting: each for each in foreseen(read(RESULTS))}
    assert len(found) == 13
    for name, k, size in (("lossless", 3, 4), ("Cactus 1", 7, 8), ("clamped 2", 11, 12)):
        each, cell = found[f"{name}, ×{k}"], stored["summary"]["cells"][f"{name}|{k}"]
        assert each.by_own == pytest.approx(passes[1] * cell["tokens_per_step"] / (passes[size] + k * draft))
        assert each.timed[0] == cell["over_plain"][0]
    alone = found["the target alone, tokens per second"]
    assert alone.by_rows == pytest.approx(1 / passes[1])
    assert alone.error == pytest.approx(1 / passes[1] / stored["summary"]["cells"]["plain"]["tokens_per_second"] - 1)


def test_rules_at_equal_speed_are_those_of_the_table():
    made = configs("/models/t.gguf", "/models/d.gguf", "gsm8k", 200, 512)
    names = [parse_rule(config.rule).name for config in made]
    assert names == ["lossless", *MATTER]
    assert {(config.target, config.num_speculative_tokens, config.problems) for config in made} == {("t.gguf", 3, 200)}
    listed = {str(parse_rule(row["rule"])) for row in read(EQUAL)["table"]}
    assert {config.rule for config in made[1:]} <= listed


def test_the_advice_is_that_of_the_tables():
    """What the page says, in the numbers that it rests on."""
    table = {
        row["family"]: row["kl"] / row["clamped"]["kl"]
        for row in read(ROOT / "studies/rules/results/real_frontier.json.gz")["table"]
    }
    best = sorted(table, key=table.__getitem__)[:3]
    assert best == ["clamped", "clamped_max_kl", "lenience"]
    assert (times(4.4), times(4.4e6)) == ("4×", "10⁷×")
    runs = [run for path in stored_answers() for run in summarise(read_results(path))]
    assert "1.14 (1.05 to 1.24)" in lengths(runs)
    programs = [run for run in runs if run.config.rule != "lossless" and "humaneval" in run.config.task]
    assert len(programs) == 5
    assert all(run.known("steps_ratio").low < 1 < run.known("steps_ratio").high for run in programs)
    assert len(length_warnings(runs)) == 3


@pytest.mark.slow
def test_answers_at_equal_speed_go_on_where_they_were(gguf, tmp_path: Path):
    task, answers = tmp_path / "problems.jsonl", tmp_path / "answers.jsonl"
    task.write_text(json.dumps({"question": "Ann has 3 apples and buys 2 more. How many?", "answer": "#### 5"}) + "\n")
    page = copied_page(ROOT / "docs" / PAGE, tmp_path)
    given = ("--target", gguf("target"), "--draft", gguf("worded"), "--task", f"gsm8k:path={task}", "--problems", 1)
    given += ("--max-new-tokens", 16, "--answers", answers, "--page", page)
    for _ in range(2):
        done = run_script("studies.relaxing.real", *given)
        assert done.returncode == 0, done.stderr
    assert len(read_results(answers)) == 1 + len(MATTER)
    assert "Answering" not in done.stderr
