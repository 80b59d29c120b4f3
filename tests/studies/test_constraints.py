"""The script behind docs/studies/constraints.md: its stories, its training and answering, and the page."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from support.scripts import ROOT, assert_rendered, copied_page, run_script

from cactus_decoding.zoo.word_problems import extract_answer, split_of
from cactus_decoding.zoo.word_problems.families import FAMILIES
from cactus_decoding.zoo.word_problems.story import Equation, UnsuitableStoryError
from studies.constraints import run as constraints
from studies.constraints import stories as constraint_stories
from studies.constraints.stories import (
    ANSWERABLE,
    REFUSAL,
    UNANSWERABLE,
    ConstrainedStory,
    constrained_stories,
    is_refusal,
    outcome,
)

PAGE, PICTURE = (ROOT / "docs" / "studies" / name for name in ("constraints.md", "pictures/constraints.svg"))
RESULTS = ROOT / "studies" / "constraints" / "results" / "constraints.json"


run = partial(run_script, "studies.constraints.run")


@pytest.fixture(scope="module")
def stories() -> list[ConstrainedStory]:
    return list(islice(constrained_stories("train", seed=3), 1200))


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def worked_out(solution: str, given: set[int]) -> bool:
    """Say whether each line of a solution is right arithmetic on numbers that are given or were worked out before."""
    known = set(given)
    for left, operator, right, value in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", solution):
        a, b, c = int(left), int(right), int(value)
        right_value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
        if c != right_value or not {a, b} <= known:
            return False
        known.add(c)
    return True


def test_half_of_the_stories_have_an_answer_and_every_kind_occurs(stories: list[ConstrainedStory]) -> None:
    assert sum(story.answer is None for story in stories) == len(stories) // 2
    assert {story.kind for story in stories if story.answer is None} == set(UNANSWERABLE)
    assert {story.kind for story in stories if story.answer is not None} == set(ANSWERABLE)


def sentences(text: str) -> list[str]:
    """Return what a text says, reminders like the facts that they repeat."""
    return [re.sub(r"^(Note|Remember|Again): ", "", sentence) for sentence in re.split(r"(?<=\.) ", text)]


def test_two_completions_with_different_answers_agree_with_a_story_without_one(stories: list[ConstrainedStory]) -> None:
    for story in stories:
        if story.answer is not None:
            assert story.completions == ()
            continue
        (first, answer), (second, other) = story.completions
        assert answer != other
        told, both = sentences(story.question), list(zip(sentences(first), sentences(second), strict=True))
        assert all(a in told for a, b in both if a == b)
        [(mine, theirs)] = [(a, b) for a, b in both if a != b]
        [number] = [n for n, m in zip(numbers(mine), numbers(theirs), strict=True) if n != m]
        vague = re.compile(re.sub(rf"\b{number}\b", "(some|many|a few)", re.escape(mine)), re.IGNORECASE)
        said = [told.count(mine), told.count(theirs), sum(bool(vague.fullmatch(sentence)) for sentence in told)]
        expected = {"left out": [0, 0, 0], "vague": [0, 0, 1], "vague twice": [0, 0, 2], "contradicted": [1, 1, 0]}
        assert said == expected[story.kind], story


def evaluated(operand: int | Equation, number: int, other: int) -> int:
    if not isinstance(operand, Equation):
        return other if operand == number else operand
    a, b = (evaluated(each, number, other) for each in (operand.left, operand.right))
    assert operand.operator != "/" or a % b == 0
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[operand.operator]


def test_the_answer_depends_on_the_number_that_is_left_out() -> None:
    rng, found = random.Random(7), 0
    while found < 300:
        try:
            story = FAMILIES[rng.choice(list(FAMILIES))](rng)
            pivot = constraint_stories.draw_pivot(story, rng)
        except (UnsuitableStoryError, IndexError):
            continue
        found += 1
        stated = [int(n) for fact in story.facts for n in numbers(fact)]
        assert constraint_stories.leaves(story.equations) <= set(stated), "solutions take no number from elsewhere"
        assert stated.count(pivot.number) == 1
        assert str(pivot.number) in numbers(story.facts[pivot.place])
        values = [evaluated(each, pivot.number, pivot.other) for each in story.equations]
        assert [each.value for each in pivot.equations] == values
        assert values[-1] != story.equations[-1].value
        changed = {id(e) for e, value in zip(story.equations, values, strict=True) if e.value != value}
        assert changed <= {id(each) for each in constraint_stories.unknown(story.equations, pivot.number)}


def test_solutions_work_out_only_what_can_be(stories: list[ConstrainedStory]) -> None:
    for story in stories:
        assert worked_out(story.solution, {int(n) for n in numbers(story.question)}), story
        if story.answer is None:
            assert story.solution.splitlines()[-1] == REFUSAL
            assert len(re.findall(r"\d+ [-+*/] \d+ =", story.solution)) == story.num_steps - 1
            assert len(story.solution.splitlines()) == story.num_steps + 1
        else:
            assert extract_answer(story.solution) == story.answer


def test_neither_length_nor_one_word_gives_a_story_away(stories: list[ConstrainedStory]) -> None:
    answerable, others = ([s for s in stories if (s.answer is None) == none] for none in (False, True))
    # the chance that a story without an answer is longer than one with an answer; of a fixed seed
    pairs = [(len(a.question), len(b.question)) for a in answerable for b in others]
    assert 0.4 < sum((b > a) + 0.5 * (a == b) for a, b in pairs) / len(pairs) < 0.6
    for word in ("some", "many", "a few", "Note:", "Remember:", "Again:"):
        counts = [sum(word in s.question.rpartition(". ")[0] for s in group) for group in (answerable, others)]
        assert 0.3 < counts[1] / sum(counts) < 0.7, word


def test_splits_are_those_of_the_questions_hash() -> None:
    found = {split: list(islice(constrained_stories(split, seed=1), 150)) for split in ("train", "validation", "test")}
    for split, drawn in found.items():
        assert {split_of(story.question) for story in drawn} == {split}
    again = [story.question for story in islice(constrained_stories("test", seed=1), 150)]
    assert again == [story.question for story in found["test"]]


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        (12, "3 * 4 = 12\n#### 12", "r"),
        (12, "3 * 4 = 13\n#### 13", "w"),
        (12, "A number is missing.\n#### cannot tell", "f"),
        (None, "A number is missing.\n#### cannot tell", "R"),
        (None, "A number is missing.\n#### 12", "v"),
        (None, "3 * 4 = 12\n#### cannot 12", "o"),
        (None, "cannot tell", "o"),
        (12, "", "o"),
    ],
)
def test_a_response_is_one_of_the_outcomes(answer: int | None, text: str, expected: str) -> None:
    assert outcome(answer, text) == expected
    assert expected in constraint_stories.OUTCOMES
    assert is_refusal(text) == (expected in "fR")


@pytest.mark.slow
def test_the_page_is_rendered_from_its_result_file(tmp_path: Path) -> None:
    assert_rendered("studies.constraints.run", PAGE, tmp_path, picture=PICTURE)


def test_the_result_file_says_where_it_comes_from_and_no_budget_was_overspent() -> None:
    content = json.loads(RESULTS.read_text())
    assert content["provenance"]["commit"]
    assert [plan["steps"] for plan in content["training"]["plans"]] == [plan.steps for plan, _ in constraints.PLANS]
    asked = constraints.settings()
    for result in content["settings"]:
        assert result["setting"] in asked
        assert len(result["outcomes"]) == len(content["kinds"])
        # without a budget only the greedy rule is metered
        if "greedy" not in result["setting"]["rule"]:
            assert result["max_nats"] <= result["setting"].get("budget_nats", 0)


@pytest.mark.slow
def test_training_and_answering_run_to_the_page_and_can_be_continued(tmp_path: Path) -> None:
    folder = constraints.train(
        tmp_path, [(replace(plan, steps=1, batch_size=4), share) for plan, share in constraints.PLANS]
    )
    assert constraints.train(tmp_path) == folder, "it is there already"
    page, results = copied_page(PAGE, tmp_path), tmp_path / "r.json"
    given = ("--work", tmp_path, "--stories", 4, "--settings", 3, "--results", results, "--page", page)
    given += ("--picture", tmp_path / "p.svg")
    first = run(*given)
    assert first.returncode == 0, first.stderr
    content = json.loads(results.read_text())
    assert [len(each["outcomes"]) for each in content["settings"]] == [4, 4, 4]
    [journal] = tmp_path.glob("answers-*.jsonl")
    whole = journal.read_text()
    journal.write_text(whole[: len(whole) - 30])  # killed while it wrote the last answer
    assert run(*given).returncode == 0
    assert journal.read_text() == whole
    assert json.loads(results.read_text())["settings"] == content["settings"]
    refused = run(*given, "--seed", 1)  # of other stories: a journal of their own
    assert refused.returncode == 0
    assert len(list(tmp_path.glob("answers-*.jsonl"))) == 2
    journal.write_text(whole.replace('"target": "', '"target": "0', 1))
    assert "other models" in run(*given).stderr
    assert run("--stories", 1).returncode == 2
