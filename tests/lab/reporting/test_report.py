"""The report and its charts: nothing lost, nothing cut off, nothing fetched, everything escaped."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.recorded_rows import some_rows
from support.result_files import NASTY, made, several, write
from support.tables import all_of

from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.run_config import parse_policies
from cactus_decoding.lab.evaluation.runs.summary import NAMES, summarise
from cactus_decoding.lab.frontier.frontier import as_result, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES, parse_families
from cactus_decoding.lab.reporting import charts
from cactus_decoding.lab.reporting.charts import TO_ALONE, TO_LOSSLESS, frontier_picture, time_metric
from cactus_decoding.lab.reporting.pictures import STYLES, family_of
from cactus_decoding.lab.reporting.report import (
    COLUMNS,
    MAIN,
    escape,
    length_warnings,
    make_report,
    mark_of,
    read_all,
    report_to_html,
    to_markdown,
    verdict,
    with_interval,
)


def test_every_row_and_every_metric_is_in_the_tables(tmp_path):
    made_of = make_report(read_all([write(tmp_path / "a.jsonl", several())]))
    (section,) = made_of.sections
    (rows,) = section.pairs.values()
    assert [row.config.label for row in rows] == [row.config.label for row in summarise(several())]
    assert "target alone, 95 % interval" in section.pictures[0].svg
    page, table = report_to_html(made_of), to_markdown(made_of)
    assert page == report_to_html(make_report(read_all([tmp_path / "a.jsonl"])))  # the same bytes
    for row in rows:
        for metric, _, digits in COLUMNS:
            text = with_interval(row.metrics[metric], digits)
            assert text in page
            assert text in table
    assert {metric for metric, _, _ in COLUMNS} <= set(NAMES)
    assert page.count('<th scope="row"') == 2 * len(rows)  # in the table that is shown first, and in that of everything
    assert {metric for metric, _, _ in MAIN} <= {metric for metric, _, _ in COLUMNS}
    assert "(best lossless)" in page
    assert len({line.count("|") for line in table.splitlines() if line[:1] == "|"}) == 1


MEASURED = summarise(several())


@all_of("time, difference, said", [
    ((0.8, 0.7, 0.9), (0.01, -0.02, 0.03), "was fastest: an answer took 0.80 (0.70 to 0.90) of the time"),
    ((0.8, 0.7, 0.9), (-0.1, -0.2, -0.05), "by -10.0 (-20.0 to -5.0) points, more than chance explains."),
    ((0.8, 0.7, 0.9), (-0.1, -0.2, 0.05), "points, which chance may explain."),
    ((0.9, 0.8, 1.1), (0.0, 0.0, 0.0), "No relaxed rule was faster than lossless beyond chance: the best, cactus"),
    ((1.2, 1.1, 1.3), (0.0, 0.0, 0.0), "No relaxed rule was faster than lossless: the best, cactus"),
    ((0.8, math.nan, math.nan), (0.0, 0.0, 0.0), "there are too few problems to tell more."),
    ((0.8, 0.7, 0.9), None, "The task has no score, so what that costs is not known."),
    (None, None, "There is no verdict: lossless was not measured"),
])  # fmt: skip
def test_the_verdict_says_what_the_fastest_rule_costs(time, difference, said):
    given = {"seconds_ratio": time, "score_difference": difference}
    changed = {name: None if each is None else Interval(*each) for name, each in given.items()}
    rows = [replace(row, metrics={**row.metrics, **changed}, baseline=time and row.baseline) for row in MEASURED]
    assert said in verdict(rows)
    assert verdict([each for each in rows if each.config.rule == "lossless"]).endswith("no relaxed rule was measured.")


@all_of("alone, first, claim", [
    (0.5, "Answering without a draft is faster: clamped:width=1.0 ×4 takes ", None),
    (0.8, "Answering without a draft may be as fast: clamped:width=1.0 ×4 takes 1.00 (", None),
    (2.0, "clamped:width=1.0 ×4 was fastest: an answer took 0.80 (", "was fastest"),
    (None, "clamped:width=1.0 ×4 was fastest: an answer took 0.80 (", "was fastest"),
])  # fmt: skip
def test_nothing_is_called_fastest_where_answering_without_a_draft_is_faster_or_may_be(alone, first, claim):
    runs = [made("lossless", 4), made("clamped:width=1.0", 4, seconds=0.8)]
    rows = summarise([*runs, *([] if alone is None else [made("lossless", 0, seconds=alone)])])
    said = verdict(rows)
    assert said.startswith(first)
    assert "took 0.80 (" in said
    assert ("fastest" in said) == (claim is not None)
    named = "best lossless with a draft" if alone in (0.5, 0.8) else "best lossless"
    assert mark_of(rows[0]) == named
    assert f"the time of lossless ×4, the {named.replace('lossless', 'lossless setting')}." in said


def test_of_several_settings_the_verdict_says_that_the_fastest_was_chosen_by_these_problems():
    runs = [made("lossless", 4), *(made(f"clamped:width={width}", 4, seconds=1 - width / 10) for width in (1.0, 2.0))]
    chosen = "It was chosen among 2 relaxed settings on the same problems."
    assert chosen in verdict(summarise(runs))
    assert "chosen among" not in verdict(summarise(runs[:2]))


def lengthened(result, factor: float, cut: int, seconds: float):
    """Return a run whose answers are longer, of which the first are cut, at times of its own."""
    answers = dict(result.answers)
    answers["generated"] = [round(factor * each) for each in answers["generated"]]
    answers["finish_reason"] = ["length" if place < cut else "stop" for place in range(result.config.problems)]
    answers["seconds"] = [seconds * each for each in answers["seconds"]]
    return replace(result, answers=answers)


def test_longer_answers_are_warned_of_and_the_verdict_goes_by_time_per_answer():
    lossless, relaxed = made("lossless", 4), made("clamped:width=1.0", 4)
    rows = summarise([lossless, lengthened(relaxed, 1.5, cut=9, seconds=1.2)])
    assert rows[1].known("tokens_per_second").value > rows[0].known("tokens_per_second").value
    assert "No relaxed rule was faster than lossless: the best, clamped:width=1.0 ×4, took 1.2" in verdict(rows)
    (warning,) = length_warnings(rows)
    assert warning.startswith("Longer answers: those of clamped:width=1.0 ×4 are 1.50 (1.")
    assert "cut at the limit by 15.0 (" in warning
    assert warning.endswith("those of lossless ×4. Go by the time per answer, not by tokens per second.")
    report_of = make_report([("a.jsonl", [each for row in rows for each in row.group.results])])
    assert warning in report_to_html(report_of)
    assert escape(warning) in to_markdown(report_of)


@all_of("factor, cut", [(1.0, 0), (1.0, 2), (0.7, 0)])
def test_answers_that_are_not_longer_beyond_chance_are_not_warned_of(factor, cut):
    lossless, relaxed = made("lossless", 4), made("clamped:width=1.0", 4)
    assert length_warnings(summarise([lossless, lengthened(relaxed, factor, cut, seconds=1.0)])) == []
    assert length_warnings(summarise([relaxed])) == []


def test_times_that_nobody_measured_give_no_verdict():
    runs = [lengthened(made(rule, 4), 1.0, cut=0, seconds=math.nan) for rule in ("lossless", "clamped:width=1.0")]
    assert verdict(summarise(runs)) == "There is no verdict: times were not measured."


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
    for shown in (report_to_html, to_markdown):
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
    page, table = report_to_html(made_of), to_markdown(made_of)
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
    adapts = made("lossless", 4, seconds=0.95, draft="ngram")
    results.append(replace(adapts, config=adapts.config.asking(num_speculative_tokens="auto")))
    made_of = make_report([("a.jsonl", results)])
    assert "lossless ×auto (best lossless)" in report_to_html(made_of)
    plain, truncated = made_of.sections
    assert [name.partition("draft ")[2] for name in plain.pairs] == ["small", "ngram", "early_exit"]
    assert plain.pictures[-1].wide
    assert "temperature 0.6, top-k 20" in truncated.title
    assert len(truncated.pairs) == 1


def test_what_comes_from_files_is_escaped():
    results = [replace(each, provenance={"commit": NASTY}) for each in several(target=NASTY, task=NASTY)]
    made_of = make_report([(NASTY, results)])
    page = report_to_html(made_of)
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


def test_panels_of_wall_time_show_the_slowest_pair_whole(monkeypatch):
    monkeypatch.setattr(charts, "to_svg", lambda figure: figure)
    assert time_metric(summarise(several())) == TO_ALONE  # where every pair has it
    assert time_metric(summarise([r for r in several() if r.config.num_speculative_tokens])) == TO_LOSSLESS
    slow = [made("lossless", 0, seconds=1.0, draft="slow"), made("lossless", 4, seconds=3.0, draft="slow")]
    figure = charts.time_picture({"quick": summarise(several()), "slow": summarise(slow)})
    for panel in figure.axes:
        assert panel.get_ylim()[0] == 0
        assert panel.get_ylim()[1] > 3


def test_protected_curves_stand_beside_the_others(monkeypatch):
    monkeypatch.setattr(charts, "to_svg", lambda figure: figure)
    rows, words = some_rows(), Vocabulary(("1", *"abcdef"))
    policies = parse_policies(["none", "digits", "[1-2]$"], protect_threshold=0.2)
    points = frontier(rows, [FAMILIES["clamped"]], points=3, policies=policies, vocabulary=words)
    figure = frontier_picture(as_result(points, rows, {}))
    curves = [line for line in figure.axes[0].lines if line.get_label().startswith(FAMILIES["clamped"].label)]
    assert [line.get_label().partition(",")[2] for line in curves][:2] == ["", " protecting digits above 0.2"]
    assert len(curves) == 3
    assert [line.get_linestyle() for line in curves] == ["-", ":", ":"]
    assert {line.get_color() for line in curves} == {STYLES["clamped"].colour}


@pytest.mark.slow
def test_the_picture_is_the_same_every_time_and_shows_every_family():
    rows = some_rows()
    result = as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, {})
    picture = frontier_picture(result)
    assert picture == frontier_picture(result)
    assert picture.startswith("<?xml")
    for colour in {STYLES[name].colour for name in FAMILIES}:
        assert colour in picture


def test_families_cover_every_rule_that_samples_and_have_a_look_of_their_own():
    assert {family_of(family.spell(family.strict)) for family in FAMILIES.values()} == set(FAMILIES)
    assert set(FAMILIES) <= set(STYLES)
    looks = [(style.marker, style.colour, style.hollow) for style in STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert len({(style.marker, style.hollow) for style in STYLES.values()}) == len(STYLES)
    with pytest.raises(ValueError, match="unknown rule family 'cactis'; known are cactus, cactus_exact"):
        parse_families(["cactis"])
