"""Draw word problems from a seed; a hash of the question fixes which split a problem is in."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from cactus_decoding.zoo.word_problems.families import FAMILIES
from cactus_decoding.zoo.word_problems.story import UnsuitableStoryError, write_question, write_solution

SplitName = Literal["train", "validation", "test"]
_ANSWER = re.compile(r"####\s*(-?[\d,]*\d)")


@dataclass(frozen=True)
class WordProblem:
    """A question, one of its worked solutions, and the answer."""

    question: str
    solution: str  # one arithmetic step a line, then ``#### answer``
    answer: int
    family: str  # a key of `FAMILIES`
    num_steps: int  # arithmetic steps of the solution (2 to 6): the difficulty

    @property
    def prompt(self) -> str:
        return format_prompt(self.question)


def format_prompt(question: str) -> str:
    r"""Return the prompt for a question, as the bundled models know it.

    >>> format_prompt("How many legs do 3 cats have?")
    'Question: How many legs do 3 cats have?\nAnswer:'
    """
    return f"Question: {question}\nAnswer:"


def is_prompt(text: str) -> bool:
    """Return whether a text is already a prompt of `format_prompt`.

    >>> is_prompt(format_prompt("How many?")), is_prompt("How many?")
    (True, False)
    """
    return text.startswith("Question:") and "\nAnswer:" in text


def as_prompt(text: str) -> str:
    """Return the prompt for a bare question, with normal white space; a prompt is left as it is."""
    return text if is_prompt(text) else format_prompt(" ".join(text.strip().removeprefix("Question:").split()))


def extract_answer(text: str) -> int | None:
    """Return the number after the first ``####``, or None where there is none."""
    found = _ANSWER.search(text)
    return int(found.group(1).replace(",", "")) if found else None


def split_of(question: str) -> SplitName:
    """Return the split that a question belongs to: 90 % train, 5 % validation, 5 % test, by hash."""
    bucket = hashlib.sha256(question.encode()).digest()[0]
    if bucket < 13:
        return "test"
    return "validation" if bucket < 26 else "train"


def draw_problem(rng: random.Random, habit: float = 0.0) -> WordProblem:
    while True:
        family = rng.choice(list(FAMILIES))
        try:
            story = FAMILIES[family](rng)
        except (UnsuitableStoryError, IndexError):  # IndexError: no bill, divisor or name was left to choose from
            continue
        if not 2 <= len(story.equations) <= 6:
            continue
        question = write_question(story, rng)
        solution = write_solution(story, rng, habit)
        return WordProblem(question, solution, story.equations[-1].value, family, len(story.equations))


def word_problems(split: SplitName, seed: int = 0, habit: float = 0.0) -> Iterator[WordProblem]:
    """Yield problems of one split without end; the same seed gives the same problems.

    Args:
        split: ``train``, ``validation`` (for tuning) or ``test`` (held out: report on it, never tune on it).
        seed: start of the generator.
        habit: how often a sentence of a solution is told in its kind's dominant way rather than in any, in [0, 1].

    Raises `ValueError` for an unknown split, or a habit out of range.
    """
    if split not in get_args(SplitName):
        raise ValueError(f"split must be one of {', '.join(get_args(SplitName))}, but is {split!r}")
    if not 0 <= habit <= 1:
        raise ValueError(f"habit must be in [0, 1], but is {habit!r}")
    return _stream(split, seed, habit)


def _stream(split: SplitName, seed: int, habit: float) -> Iterator[WordProblem]:
    rng = random.Random(f"word problems {seed}")
    while True:
        problem = draw_problem(rng, habit)
        if split_of(problem.question) == split:
            yield problem
