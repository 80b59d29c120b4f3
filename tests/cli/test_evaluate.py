"""`cactus eval`: what goes into which file, and its tables, of 80 columns or of every metric."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from support.result_files import made

from cactus_decoding.cli.evaluation_table import table
from cactus_decoding.core.drafting.registry import as_tree
from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from cactus_decoding.lab.reporting.report import COLUMNS, short_number

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")

SMALL = ("--problems", "3", "--max-new-tokens", "24", "--threads", "1")


def test_fewer_of_the_same_problems_may_be_asked_into_the_same_file_and_no_others(run, tmp_path):
    problems, out = tmp_path / "own.jsonl", tmp_path / "results.jsonl"
    arguments = ("eval", "--task", f"jsonl:path={problems}", "--max-new-tokens", "4", "--output", str(out))
    problems.write_text('{"prompt": "Question: one"}\n{"prompt": "Question: two"}\n')
    assert run(*arguments)[0] == 0
    assert run(*arguments, "--problems", "1")[0] == 0
    assert [result.config.problems for result in read_results(out)] == [2, 1]
    before = out.read_bytes()
    for other in ('{"prompt": "Question: one", "id": "other"}\n', '{"prompt": "Question: other"}\n'):
        problems.write_text(other)
        code, _, err = run(*arguments, "--problems", "1")
        assert (code, "other problems" in err, out.read_bytes()) == (2, True, before)


def test_lengths_and_trees_are_swept(succeed, refused, tmp_path):
    out = tmp_path / "results.jsonl"
    given = ("eval", *SMALL, "--output", str(out), "--rule", "lossless", "--rule", "clamped:width=1", "--tree",
             "static=3.2,drawn=2", "--tree", "static=2.2", "--num-speculative-tokens")  # fmt: skip
    assert "at most one drawn child a token" in refused(*given, "3", "--verification", "joint", "--protect", "none")
    printed, _ = succeed(*given, "0,3,confidence:threshold=0.5,auto")
    lengths = [str(result.config.num_speculative_tokens).partition("=")[0] for result in read_results(out)]
    assert [*dict.fromkeys(lengths)] == ["0", "3", "confidence:threshold", "auto", "tree:static"]
    assert "best lossless chain" in printed
    assert "best lossless tree" in printed
    tree = read_results(out)[-1]
    assert str(tree.config.num_speculative_tokens) == "tree:static=2.2"
    assert tree.audited
    steps, drafted = (sum(tree.answers[name]) for name in ("steps", "drafted"))
    assert 0 < drafted <= 6 * steps
    assert sum(tree.answers["recovered"]) + sum(tree.answers["bonus"]) == steps


def test_rules_share_their_random_numbers_where_they_can(succeed, tmp_path):
    rules = ("--rule", "lossless", "--rule", "clamped:width=1", "--rule", "cactus:delta=1")
    given = ("eval", *SMALL, "--problems", "2", "--num-speculative-tokens", "0,4")
    out, by_token = tmp_path / "results.jsonl", tmp_path / "token.jsonl"
    printed, err = succeed(*given, *rules, "--output", str(out))
    assert "not coupled, because the rule looks at the drafted token: cactus:delta=1.0; compared" in err
    said = " ".join(printed.split())
    assert "Coupled: settings share their random numbers" in said
    assert "compared with lossless that is verified in the same way" in said
    texts = {result.config.label: result.answers["text"] for result in read_results(out)}
    coupled = {"lossless coupled ×0", "lossless coupled ×4", "clamped:width=1.0 coupled ×4"}
    assert set(texts) == coupled | {"lossless ×4", "cactus:delta=1.0 ×4"}
    assert texts["lossless coupled ×0"] == texts["lossless coupled ×4"] != texts["lossless ×4"]
    printed, err = succeed(*given, *rules[:-2], "--verification", "token", "--output", str(by_token))
    assert "oupled" not in printed + err
    texts = {result.config.label: result.answers["text"] for result in read_results(by_token)}
    assert texts["lossless ×0"] != texts["lossless ×4"]
    varied = ("eval", *SMALL, "--problems", "1", "--num-speculative-tokens", "confidence", *rules[2:])
    err = succeed(*varied, "--output", str(tmp_path / "varied.jsonl"))[1]
    assert "not coupled, because the rule looks at the drafted token: cactus:delta=1.0; compared" in err
    assert "not coupled, because the number of proposals varies from step to step: clamped:width=1.0; compared" in err


LONG = "cactus:delta=1.0,solver=exact"
OF_SERVERS = "first_seconds_per_answer"
OF_TREES = ("nodes_per_step", "seconds_ratio_to_best_tree")


def summaries(**changes) -> list[RunSummary]:
    results = [
        made("lossless", 0, accepted=0.0, **changes),
        made("lossless", 10, **changes),
        made("clamped:width=5.16", 10, nats=123456.7, **changes),
        made(LONG, 20, seconds=12345.6, nats=0.3, **changes),
    ]
    return summarise(results)


def printed(shown: list[RunSummary], width: int = 80, **options) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(*table(shown, **options), sep="\n\n")
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_setting_has_whole_numbers_with_their_intervals_below(width: int) -> None:
    shown = summaries()
    lines = printed(shown, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    number, ends = r"\d+(?:\.\d+)?", r"\d+(?:\.\d+)?–\d+(?:\.\d+)?"
    rows = [line for line in lines if re.search(rf"0\.900(?: +{number}){{5}}$", line.rstrip())]
    below = [line for line in lines if re.search(rf"{ends} +(?:{ends} +)?{ends} +{ends} +{ends}$", line.rstrip())]
    assert len(rows) == len(below) == len(shown)
    for line, intervals, summary in zip(rows, below, shown, strict=True):
        for metric, digits in (("acceptance_length", 2), ("tokens_per_answer", 0), ("tokens_per_second", 1)):
            assert short_number(summary.known(metric).value, digits) in line
        cut = summary.known("truncated")
        assert f"{100 * cut.low:.0f}–{100 * cut.high:.0f}" in intervals
    assert rows[0].split()[-2] == short_number(shown[0].known("seconds_per_answer").value, 3)
    assert rows[3].split()[-2] == short_number(shown[3].known("seconds_per_answer").value, 0)
    assert any(line.startswith("cactus:delta=1.0, ") for line in lines)
    assert any(line.startswith("lossless ×10*") for line in lines)


def test_what_nobody_knows_has_no_column_and_the_best_lossless_is_explained_where_one_is_shown() -> None:
    head = " ".join(printed(summaries(scored=False, audited=False))[:3])
    assert ("score" in head, "seconds/" in head) == (False, True)
    assert "best lossless" in " ".join(printed(summaries()))
    assert "best lossless" not in " ".join(printed(summarise([made("clamped:width=5.16", 10), made(LONG, 20)])))


def test_the_best_chain_and_the_best_tree_are_told_apart() -> None:
    trees = [
        made("lossless", as_tree("static=4.2.2.1"), seconds=0.9),
        made("lossless", as_tree("static=2.2.2"), seconds=2.0),
    ]
    shown = summarise([each for summary in summaries() for each in summary.group.results] + trees)
    lines = printed(shown)
    assert max(map(len, lines)) <= 80
    assert "* best lossless chain; ** best lossless tree; " in " ".join(" ".join(lines).split())
    text = "\n".join(lines)
    assert "lossless ×10*" in text
    assert "\n static=4.2.2.1** " in text
    assert "\n static=2.2.2 " in text
    every = " ".join(" ".join(printed(shown, every_metric=True)).split())
    assert "lossless ×tree:static=4.2.2.1 (best lossless tree)" in every
    assert "wall time ÷ best lossless tree" in every
    assert "tree's nodes per step" in every


def test_all_says_what_a_setting_is_compared_with_where_that_differs() -> None:
    coupled = [made(rule, 4, verification="coupled") for rule in ("lossless", "clamped:width=1.0")]
    by_token = [made(rule, 4) for rule in ("lossless", "cactus:delta=1.0")]
    every = " ".join(" ".join(printed(summarise(coupled + by_token), every_metric=True)).split())
    assert "clamped:width=1.0 coupled ×4 (compared with lossless coupled ×4)" in every
    assert "cactus:delta=1.0 ×4 (compared with lossless ×4)" in every
    assert "(compared with" not in " ".join(printed(summarise(by_token), every_metric=True))


def test_all_prints_every_metric_with_its_interval() -> None:
    shown = summaries()
    lines = printed(shown, every_metric=True)
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    for metric, heading, _ in COLUMNS:
        if metric in OF_TREES or metric.startswith("pass_at_") or metric == OF_SERVERS:
            continue
        known = sum(each.metrics[name] is not None for name, other, _ in COLUMNS if other == heading for each in shown)
        assert sum(heading in line for line in lines if "interval" not in line) >= known > 0


def test_settings_that_answered_other_numbers_of_problems_stand_apart() -> None:
    both = summarise([made("lossless", 4), made("lossless", 4, problems=30)])
    titles = [line.strip() for line in printed(both) if "problems" in line]
    assert [title.split()[1] for title in titles] == ["60", "30"]
