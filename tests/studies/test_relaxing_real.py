"""The page on what relaxing costs and brings: forecasts by hand, and answers that go on where they were."""

from __future__ import annotations

import pytest

from cactus_decoding import parse_rule
from cactus_decoding.lab.reporting.report import length_warnings
from scripts.pages import ROOT
from scripts.results import read
from studies.relaxing.real import (
    ANSWERS,
    EQUAL,
    RESULTS,
    TIMED,
    foreseen,
    lengths,
    stored_answers,
    summaries_of,
    times,
)


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
    [lossless, *relaxed] = [run.config for run in summaries_of([ANSWERS])]
    listed = {str(parse_rule(row["rule"])) for row in read(EQUAL)["table"]}
    assert lossless.rule == "lossless"
    assert {str(parse_rule(config.rule)) for config in relaxed} <= listed
    assert {(config.num_speculative_tokens, config.problems) for config in (lossless, *relaxed)} == {(3, 200)}


def test_the_advice_is_that_of_the_tables():
    """What the page says, in the numbers that it rests on."""
    table = {
        row["family"]: row["kl"] / row["clamped"]["kl"]
        for row in read(ROOT / "studies/rules/results/real_frontier.json.gz")["table"]
    }
    best = sorted(table, key=table.__getitem__)[:3]
    assert best == ["clamped", "clamped_max_kl", "lenience"]
    assert (times(4.4), times(4.4e6)) == ("4×", "10⁷×")
    runs = summaries_of(stored_answers())
    assert "1.14 (1.05 to 1.24)" in lengths(runs)
    programs = [run for run in runs if run.config.rule != "lossless" and "humaneval" in run.config.task]
    assert len(programs) == 5
    assert all(run.known("steps_ratio").low < 1 < run.known("steps_ratio").high for run in programs)
    assert len(length_warnings(runs)) == 3
