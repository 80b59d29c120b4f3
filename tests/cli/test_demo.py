"""`cactus demo`: what its table, its sentences and its JSON say, and texts that depend on the seed only."""

from __future__ import annotations

import json
import math
from itertools import islice

import pytest

from cactus_decoding import Metrics, generate, load_pair
from cactus_decoding.cli import demo_report
from cactus_decoding.cli.demo import ways_of
from cactus_decoding.cli.demo_report import DemoComparison
from cactus_decoding.zoo import LOSSLESS, RELAXED, WEAK_DRAFT
from cactus_decoding.zoo.word_problems import extract_answer, word_problems

DRAFTS = ("bundled:worded", WEAK_DRAFT)
NAMES = ("plain sampling", "lossless", "relaxed, protected", "relaxed everywhere", "weak draft, same", "… on a budget")


def made_up(right: dict[str, list[bool]], seconds: dict[str, float] | None = None) -> DemoComparison:
    """Return ways that gave answers which are made up: right or wrong, each in so many seconds."""
    ways = ways_of(dict(RELAXED), None, 0.02, [])
    problems = len(next(iter(right.values())))
    for name in ("plain", "lossless", "protected", "unprotected", "weak", "budgeted"):
        way = getattr(ways, name)
        each = Metrics(steps=10, accepted=40, metered=50, fell_back=5, nats=0.01, generated=50)
        for index, is_right in enumerate(right.get(name, [True] * problems)):
            counts = each + Metrics(seconds=(seconds or {}).get(name, 1.0) + index % 3 / 100)
            way.score.right, way.score.answers = way.score.right + is_right, index + 1
            way.score.metrics += counts
            way.texts.append(f"{name} {index}")
            way.right.append(is_right)
            way.counts.append(counts)
    return ways


def rows_of(lines: list[str], name: str) -> list[str]:
    return [line for line in lines if line.startswith(name) and "/2 " in line and " %" in line]


def test_a_run_fits_a_screen_and_tells_each_way_in_a_sentence(succeed):
    out, err = succeed("demo", "--problems", "2", "--seed", "1")
    lines = out.splitlines()
    assert [len(rows_of(lines, name)) for name in NAMES] == [1, 1, 1, 1, 0, 0]
    assert [len([line for line in lines if line.startswith(f"{name}: ")]) for name in NAMES] == [1, 1, 1, 1, 0, 0]
    assert out.startswith("Question: ")
    assert f"Answer ({RELAXED['rule']}, protecting digits):" in out
    assert "2 problems cannot tell 2 points" in out
    assert "\x1b" not in out + err
    assert "Answering: 8/8" in err
    assert len(lines) <= 40


def test_more_is_told_where_it_is_asked_for(run):
    _, out, err = run("demo", "--problems", "2", "--seed", "1", "--delta", "0.5", "--verbose")
    lines = out.splitlines()
    for name in (*NAMES, "Cactus, delta=0.5"):
        assert len(rows_of(lines, name)) == 1
        too_few = [line for line in lines if line.startswith(f"{name} ") and "(too few)" in line]
        assert len(too_few) == (name not in NAMES[:2])
    assert "sqrt(0.02/2) = 0.1." in out
    assert "Answering: 14/14" in err


def test_the_json_says_how_each_way_was_asked_and_texts_depend_on_the_seed(run):
    arguments = ("demo", "--problems", "1", "--json", "--delta", "0.1", "--delta", "2")
    first = json.loads(run(*arguments)[1])
    relaxed = RELAXED["rule"]
    assert [row["rule"] for row in first["rows"]] == [
        *("lossless", "lossless", relaxed, relaxed, relaxed, relaxed),
        *("cactus:delta=0.1", "cactus:delta=2.0"),
    ]
    lengths = [RELAXED["num_speculative_tokens"]] * 6
    assert [row["num_speculative_tokens"] for row in first["rows"]] == [0, LOSSLESS["num_speculative_tokens"], *lengths]
    assert [row["protect"] for row in first["rows"]] == [None, None, "digits", *[None] * 5]
    assert [row["budget_nats"] for row in first["rows"]] == [*[None] * 5, 0.02, None, None]
    assert first["arguments"]["seed"] == 0
    assert first["provenance"]["arguments"] == first["arguments"]
    other = json.loads(run(*arguments, "--seed", "1")[1])
    assert [row["texts"] for row in first["rows"]] != [row["texts"] for row in other["rows"]]


def test_every_number_is_that_of_the_responses(run):
    rules = ("--rule", "cactus:delta=1", "--protect", r"\d|=", "--budget", "0.1")
    asked = ("--problems", "2", "--json", "--num-speculative-tokens", "3", "--top-p", "0.95")
    done = json.loads(run("demo", *asked, *rules)[1])
    problems, pairs = list(islice(word_problems("test"), 2)), {name: load_pair(draft=name) for name in DRAFTS}
    relaxed = {"rule": "cactus:delta=1"}
    protected, limited = relaxed | {"protect": r"\d|="}, relaxed | {"budget": 0.1}
    ways = [{"num_speculative_tokens": 0}, {}, protected, relaxed, relaxed, limited]
    for row, settings in zip(done["rows"], ways, strict=True):
        settings = {"num_speculative_tokens": 3, "top_p": 0.95} | settings
        pair = pairs[row["draft"]]
        answers = [generate(pair, each.prompt, **settings, seed=seed) for seed, each in enumerate(problems)]
        assert row["texts"] == [each.text for each in answers]
        right = [extract_answer(each.text) == one.answer for each, one in zip(answers, problems, strict=True)]
        assert (row["right_answers"], row["right"]) == (right, sum(right))
        for name in ("steps", "accepted", "protected", "fell_back"):
            assert row["metrics"][name] == sum(getattr(each.metrics, name) for each in answers)


def test_a_broken_answer_is_one_that_only_the_unprotected_rules_got_wrong():
    right = {
        "lossless": [True, False, True, True, True],
        "protected": [True, True, False, True, True],
        "unprotected": [True, False, False, True, False],
        "weak": [False, True, True, False, True],
    }
    ways = made_up(right)
    assert demo_report.broken(ways) == (ways.unprotected, 4)
    shown = demo_report.broken_answer(ways, next(word_problems("test")), ways.unprotected, 4)
    assert [str(cell) for column in shown.columns for cell in column.cells] == ["protected 4", "unprotected 4"]
    ways = made_up(right | {"unprotected": [True] * 5})
    assert demo_report.broken(ways) == (ways.weak, 0)
    assert demo_report.broken(made_up({"plain": [True] * 4})) is None
    assert {demo_report.bar(share / 99, "#").strip("#") for share in range(100)} == {""}  # no more than ASCII
    assert [len(demo_report.bar(share / 64)) for share in (0, 1, 8, 9, 64)] == [0, 1, 1, 2, 8]


def test_what_chance_explains_is_not_called_a_loss_and_time_is_judged_by_its_interval():
    for wrong, lost in ((2, False), (12, True)):
        ways = made_up({"unprotected": [False] * wrong + [True] * (40 - wrong)})
        assert ("more than chance explains" in demo_report.sentence(ways.unprotected, ways)) == lost
        assert "more than chance explains" not in demo_report.sentence(ways.protected, ways)
    for seconds, said in (
        (0.5, "It is faster, with no loss"),
        (2.0, "It is no faster on this machine"),
        (1.0, "This run cannot tell"),
    ):
        ways = made_up({"plain": [True] * 40}, {"protected": seconds})
        assert said in demo_report.sentence(ways.protected, ways)
        protected, lossless = (sum(each.seconds for each in way.counts) for way in (ways.protected, ways.lossless))
        beside = demo_report.time_beside(ways.protected, ways.lossless)
        assert beside.value == pytest.approx(protected / lossless)


def test_a_budget_s_sentence_says_what_it_promises():
    ways = made_up({"plain": [True] * 4})
    said = demo_report.budgeted(ways)
    assert "spent 0.0100 on average; at 10 % of the positions" in said
    assert f"by more than sqrt(0.02/2) = {math.sqrt(0.01):.2g}." in said
    rule = "relaxed_greedy:margin=1"
    greedy = ways_of({"rule": rule, "protect": "digits", "temperature": 0.0}, None, 0.5, [])
    assert demo_report.budgeted(greedy) == "Nothing was drafted, so nothing was spent."
    greedy.budgeted.score.metrics, greedy.budgeted.score.answers = Metrics(metered=4), 1
    assert "gives up more than 0.5 nats of log-probability" in demo_report.budgeted(greedy)
