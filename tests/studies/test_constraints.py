"""The script behind docs/studies/constraints.md: its stories, its training and answering, and the page."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from support.scripts import ROOT

from cactus_decoding.zoo.word_problems import extract_answer, split_of
from scripts.results import read
from studies.constraints import run as constraints
from studies.constraints.stories import REFUSAL, ConstrainedStory, constrained_stories, is_refusal, outcome

RESULTS = ROOT / "studies" / "constraints" / "results" / "constraints.json.gz"


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


def test_solutions_work_out_only_what_can_be(stories: list[ConstrainedStory]) -> None:
    for story in stories:
        assert worked_out(story.solution, {int(n) for n in numbers(story.question)}), story
        if story.answer is None:
            assert story.solution.splitlines()[-1] == REFUSAL
            assert len(re.findall(r"\d+ [-+*/] \d+ =", story.solution)) == story.num_steps - 1
            assert len(story.solution.splitlines()) == story.num_steps + 1
        else:
            assert extract_answer(story.solution) == story.answer


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
    assert is_refusal(text) == (expected in "fR")


def test_the_result_file_says_where_it_comes_from_and_no_budget_was_overspent() -> None:
    content = read(RESULTS)
    assert content["provenance"]["commit"]
    assert [plan["steps"] for plan in content["training"]["plans"]] == [plan.steps for plan, _ in constraints.PLANS]
    asked = constraints.settings()
    for result in content["settings"]:
        assert result["setting"] in asked
        assert len(result["outcomes"]) == len(content["kinds"])
        # without a budget only the greedy rule is metered
        if "greedy" not in result["setting"]["rule"]:
            assert result["max_nats"] <= result["setting"].get("budget_nats", 0)
