"""The report: nothing lost, nothing fetched, everything escaped, and its page opened in a real browser."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.result_files import NASTY, made, several, write

from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.runs.summary import NAMES, summarise
from cactus_decoding.lab.reporting.report import (
    COLUMNS,
    MAIN,
    make_report,
    number,
    read_all,
    to_html,
    to_markdown,
    verdict,
)


def test_every_row_and_every_metric_is_in_the_tables(tmp_path):
    made_of = make_report(read_all([write(tmp_path / "a.jsonl", several())]))
    (section,) = made_of.sections
    (rows,) = section.pairs.values()
    assert [row.config.label for row in rows] == [row.config.label for row in summarise(several())]
    page, table = to_html(made_of), to_markdown(made_of)
    for row in rows:
        for metric, _, digits in COLUMNS:
            text = number(row.metrics[metric], digits)
            assert text in page
            assert text in table
    assert {metric for metric, _, _ in COLUMNS} <= set(NAMES)
    assert page.count('<th scope="row"') == 2 * len(rows)  # in the table that is shown first, and in that of everything
    assert {metric for metric, _, _ in MAIN} <= {metric for metric, _, _ in COLUMNS}
    assert "(best lossless)" in page
    assert all(line.count("|") == table.splitlines()[6].count("|") for line in table.splitlines() if line[:1] == "|")


@pytest.mark.parametrize(
    ("time", "difference", "said"),
    [
        ((0.8, 0.7, 0.9), (0.01, -0.02, 0.03), "was fastest: an answer took 0.80 (0.70 to 0.90) of the time"),
        ((0.8, 0.7, 0.9), (-0.1, -0.2, -0.05), "by -10.0 (-20.0 to -5.0) points, more than chance explains."),
        ((0.8, 0.7, 0.9), (-0.1, -0.2, 0.05), "points, which chance may explain."),
        ((0.9, 0.8, 1.1), (0.0, 0.0, 0.0), "No relaxed rule was faster than lossless beyond chance: the best, cactus"),
        ((1.2, 1.1, 1.3), (0.0, 0.0, 0.0), "No relaxed rule was faster than lossless: the best, cactus"),
        ((0.8, math.nan, math.nan), (0.0, 0.0, 0.0), "there are too few problems to tell more."),
        ((0.8, 0.7, 0.9), None, "The task has no score, so what that costs is not known."),
        (None, None, "There is no verdict: lossless was not measured"),
    ],
)
def test_the_verdict_says_what_the_fastest_rule_costs(time, difference, said):
    given = {"seconds_ratio": time, "score_difference": difference}
    changed = {name: None if each is None else Interval(*each) for name, each in given.items()}
    rows = [replace(row, metrics={**row.metrics, **changed}) for row in summarise(several())]
    assert said in verdict(rows)
    assert verdict([each for each in rows if each.config.rule == "lossless"]).endswith("no relaxed rule was measured.")


def test_the_first_picture_has_the_interval_of_all_numbers():
    (section,) = make_report([("a.jsonl", several())]).sections
    assert "target alone, 95 % interval" in section.pictures[0].svg


def test_what_is_missing_is_said():
    bare = [made("cactus:delta=1.0", 4, audited=False, scored=False)]
    (section,) = make_report([("a.jsonl", bare)]).sections
    assert len(section.pictures) == 1
    notes = " ".join(section.notes)
    for text in ("the task has no score", "nobody audited", "lossless was not measured"):
        assert text in notes
    (section,) = make_report([("a.jsonl", several()[1:])]).sections
    assert "the target alone was not measured" in section.notes[0]


def test_how_runs_were_verified_is_said_where_some_are_coupled():
    coupled, by_token = (
        [made(rule, 4, verification=how) for rule in ("lossless", "clamped:width=1.0")] for how in ("coupled", "token")
    )
    notes = [make_report([("a.jsonl", each)]).sections[0].notes for each in (by_token, coupled, by_token + coupled)]
    alike = "Every setting is compared with lossless that is verified in the same way."
    assert "oupled" not in " ".join(notes[0])
    assert notes[1][0].startswith("Coupled: settings share their random numbers")
    assert alike not in notes[1][0]
    assert notes[2][0].startswith(notes[1][0])
    assert notes[2][0].endswith(alike)
    for shown in (to_html, to_markdown):
        assert alike in shown(make_report([("a.jsonl", by_token + coupled)]))
        assert "compared with" not in shown(make_report([("a.jsonl", coupled)]))


def test_each_setting_names_its_baseline_where_there_are_two():
    results = [
        made("lossless", 4, verification="coupled"),
        made("clamped:width=1.0", 4, verification="coupled", seconds=0.9),
        made("lossless", 2),
        made("cactus:delta=1.0", 4, seconds=0.8),
    ]
    made_of = make_report([("a.jsonl", results)])
    page, table = to_html(made_of), to_markdown(made_of)
    assert page.count('<th scope="col">compared with</th>') == 2
    rows = [line.split(" | ")[:2] for line in table.splitlines() if line[:2] == "| "]
    assert rows == [
        ["| target large, draft small", "compared with"],
        ["| lossless coupled ×4 (best lossless)", "lossless coupled ×4"],
        ["| clamped:width=1.0 coupled ×4", "lossless coupled ×4"],
        ["| lossless ×2 (best lossless)", "lossless ×2"],
        ["| cactus:delta=1.0 ×4", "lossless ×2"],
    ]
    (rows,) = made_of.sections[0].pairs.values()
    said = verdict(rows)
    assert said.startswith("Coupled: clamped:width=1.0 coupled ×4 was fastest")
    assert "of the time of lossless coupled ×4, the best lossless setting." in said
    assert "Not coupled: cactus:delta=1.0 ×4 was fastest" in said


def test_pairs_stand_side_by_side_and_samplings_apart():
    results = several() + several(draft="ngram") + several(draft="early_exit") + several(temperature=0.6, top_k=20)
    plain, truncated = make_report([("a.jsonl", results)]).sections
    assert [name.partition("draft ")[2] for name in plain.pairs] == ["small", "ngram", "early_exit"]
    assert plain.pictures[-1].wide
    assert "temperature 0.6, top-k 20" in truncated.title
    assert len(truncated.pairs) == 1


def test_a_draft_length_may_be_one_that_adapts():
    results = [*several(), made("lossless", 4, seconds=0.95)]
    results[-1] = replace(results[-1], config=results[-1].config.asking(num_speculative_tokens="auto"))
    page = to_html(make_report([("a.jsonl", results)]))
    assert "lossless ×auto (best lossless)" in page


def test_the_same_results_give_the_same_bytes():
    pages = [to_html(make_report([("a.jsonl", several())])) for _ in range(2)]
    assert pages[0] == pages[1]


def test_what_comes_from_files_is_escaped():
    results = several(target=NASTY, task=NASTY)
    provenance = {"commit": NASTY}
    results = [type(r)(r.config, r.answers, provenance) for r in results]
    made_of = make_report([(NASTY, results)])
    page = to_html(made_of)
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    assert "\x00" not in page
    page.encode()  # no lone surrogates
    table = to_markdown(made_of)
    assert "<script" not in table
    header = next(line for line in table.splitlines() if line.startswith("| "))
    of_others = ("nodes_per_step", "seconds_ratio_to_best_tree", "first_seconds_per_answer")
    known = [metric for metric, _, _ in COLUMNS if metric not in of_others and not metric.startswith("pass_at_")]
    assert header.replace("\\|", "").count("|") == len(known) + 2
    table.encode()
