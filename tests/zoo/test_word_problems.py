"""The word problems are right, varied, and their splits do not overlap."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest

from cactus_decoding import Request
from cactus_decoding.zoo import LOSSLESS, RELAXED
from cactus_decoding.zoo.word_problems import extract_answer, split_of, word_problems
from cactus_decoding.zoo.word_problems.families import STORY_FAMILIES
from cactus_decoding.zoo.word_problems.generator import unlike_stories

EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
COMPUTE = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


@pytest.fixture(scope="module")
def problems():
    return list(islice(word_problems("train", seed=3), 3000))


def test_every_line_of_every_solution_is_right(problems):
    for problem in problems:
        equations = EQUATION.findall(problem.solution)
        assert len(equations) == problem.num_steps
        for left, operator, right, value in equations:
            assert COMPUTE[operator](int(left), int(right)) == int(value)
        assert int(equations[-1][3]) == problem.answer == extract_answer(problem.solution)


def test_every_number_of_a_solution_is_given_or_worked_out_before(problems):
    for problem in problems:
        known = set(map(int, re.findall(r"\d+", problem.question)))
        for left, _, right, value in EQUATION.findall(problem.solution):
            assert {int(left), int(right)} <= known
            known.add(int(value))


def test_families_and_difficulties_are_all_there(problems):
    assert {p.family for p in problems} == set(STORY_FAMILIES)
    assert {p.num_steps for p in problems} == {2, 3, 4, 5, 6}


def test_questions_hardly_repeat_and_some_hold_distractors(problems):
    assert len({p.question for p in problems}) > 0.99 * len(problems)
    used = [len(EQUATION.findall(p.solution)) for p in problems]
    given = [len(re.findall(r"\d+", p.question)) for p in problems]
    assert sum(g > u + 1 for g, u in zip(given, used, strict=True)) > len(problems) / 4


def test_one_question_has_several_solutions_of_equal_worth():
    openings = {p.solution.split(":")[0].split(" ")[0] for p in islice(word_problems("train", seed=5), 300)}
    assert len(openings) > 20


def test_splits_are_decided_by_the_question_alone(problems):
    assert {split_of(p.question) for p in problems} == {"train"}
    held_out = {p.question for split in ("test", "validation") for p in islice(word_problems(split, seed=3), 300)}
    assert not held_out & {p.question for p in problems}
    assert [p for p in islice(word_problems("test", 1), 5)] == [p for p in islice(word_problems("test", 1), 5)]


@pytest.mark.parametrize(
    ("text", "answer"), [("#### 12", 12), ("x\n#### 1,234\n", 1234), ("####-3", -3), ("12", None), ("#### none", None)]
)
def test_extracts_the_answer(text, answer):
    assert extract_answer(text) == answer


def test_refuses_an_unknown_split():
    with pytest.raises(ValueError, match="train, validation, test, but is 'dev'"):
        word_problems("dev")


def test_problems_without_a_habit_are_those_that_the_target_was_trained_on():
    told = "".join(p.solution for p in islice(word_problems("train", seed=11), 200))
    assert sha256(told.encode()).hexdigest()[:16] == "e81aac901f57f281"


def test_a_habit_leaves_one_way_to_tell_a_kind_of_sentence():
    ways = {}
    for habit in (0.0, 1.0):
        problems = islice(word_problems("train", seed=7, habit=habit), 2000)
        lines = [line for p in problems if p.family == "seating" for line in p.solution.splitlines()]
        ways[habit] = {EQUATION.sub("{e}", line) for line in lines if "hall" in line}
    assert ways[1.0] == {"The hall has {e} seats."}
    assert len(ways[0.0]) > 20


def test_a_habit_is_a_probability():
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="habit must be"):
            word_problems("train", habit=wrong)


def test_every_story_passes_for_one_of_their_kind(problems):
    assert not [unlike for problem in problems if (unlike := unlike_stories(problem.question))]


CHOSEN = Path(__file__).resolve().parents[2] / "studies" / "relaxing" / "results" / "chosen-plain.json"


@pytest.mark.parametrize(("kind", "settings"), [("lossless", LOSSLESS), ("protected", RELAXED)])
def test_settings_are_what_the_study_chose(kind, settings):
    chosen = json.loads(CHOSEN.read_text())["chosen"][kind]
    asked = Request.from_dict(settings).as_dict()
    assert {name: asked[name] for name in ("rule", "protect", "protect_threshold", "num_speculative_tokens")} == {
        "rule": chosen["rule"],
        "protect": chosen.get("protect"),
        "protect_threshold": chosen.get("protect_threshold"),
        "num_speculative_tokens": chosen["num_speculative_tokens"],
    }
