"""Word problems from a seed, whose split a hash of the question fixes, and some to show."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Literal, NamedTuple, get_args

from cactus_decoding.zoo.word_problems.families import STORY_FAMILIES
from cactus_decoding.zoo.word_problems.story import UnsuitableStoryError, write_question, write_solution

SplitName = Literal["train", "validation", "test"]
_ANSWER = re.compile(r"####\s*(-?[\d,]*\d)")
_LONGEST_ANSWER = 100  # characters: a model may write digits without end, and Python reads no integer of any length


@dataclass(frozen=True)
class WordProblem:
    """A question, one of its worked solutions, and the answer."""

    question: str
    solution: str  # one arithmetic step a line, then ``#### answer``
    answer: int
    family: str  # a key of `STORY_FAMILIES`
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
    """Return the number after the first ``####``; None where there is none, or one longer than any answer."""
    found = _ANSWER.search(text)
    written = found.group(1).replace(",", "") if found else ""
    return int(written) if 0 < len(written) <= _LONGEST_ANSWER else None


def split_of(question: str) -> SplitName:
    """Return the split that a question belongs to: 90 % train, 5 % validation, 5 % test, by hash."""
    bucket = hashlib.sha256(question.encode()).digest()[0]
    if bucket < 13:
        return "test"
    return "validation" if bucket < 26 else "train"


def draw_problem(rng: random.Random, habit: float = 0.0) -> WordProblem:
    while True:
        family = rng.choice(list(STORY_FAMILIES))
        try:
            story = STORY_FAMILIES[family](rng)
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


class Example(NamedTuple):
    """A question that the bundled target answers right at least 8 times of 10, sampled without truncation."""

    question: str
    answer: int

    @property
    def prompt(self) -> str:
        return format_prompt(self.question)


EXAMPLES = (
    Example(
        "Anna has 43 stamps. She gives away 17 stamps. She shares the rest equally among 2 friends. "
        "How many stamps does each friend get?",
        13,
    ),
    Example("Finn has 22 nuts. Sam owns 3 times as many nuts as Finn. How many nuts do they have together?", 88),
    Example(
        "Max has 17 apples. He gives away 3 apples. He is given 6 more apples. "
        "How many apples does he have in the end?",
        20,
    ),
    Example(
        "Sara buys 9 shirts that cost 3 dollars apiece. She gives the clerk 150 dollars. How much change does she get?",
        123,
    ),
    Example(
        "Maya walks 4 hours at 5 miles per hour. The park has been open for 13 years. Then she sails 6 hours at 14 "
        "miles per hour. The whole way is 151 miles. She does this last part 2 times. How many miles is that in all?",
        94,
    ),
    Example(
        "Lily sails 3 hours at 20 miles per hour. Then she walks 5 hours at 3 miles per hour. The goal is 133 miles "
        "from the start. How many miles are left?",
        58,
    ),
    Example(
        "At the school there are 5 trays of 12 pears each. Max is 6 years old. Max takes 2 pears a day for 4 days. "
        "The rest is packed into jars of 4. How many jars are filled?",
        13,
    ),
    Example(
        "Leo makes 11 hats an hour for 6 hours in the afternoon. He sells 26 of the hats. The others are sold at the "
        "market for 2 dollars each. How many dollars does he earn for the others?",
        80,
    ),
    Example(
        "A school has 7 trays of 12 shells each. Zoe throws away 2 shells. The rest is packed into crates of 2. "
        "Zoe is 21 years old. How many crates are filled?",
        41,
    ),
    Example(
        "Zoe starts with 53 stamps. She loses 10 stamps. Zoe took bus number 11 to the library. Zoe has 11 cousins. "
        "She wins 22 more stamps. She splits the rest equally among 5 friends. How many stamps does each friend get?",
        13,
    ),
)


_STORIES = 600
_LARGEST_NUMBER = 999
_FEW_WORDS = 0.25  # share of its words that may be unknown, as some stories in other words are answered


def unlike_stories(text: str) -> str:
    """Return why a text is unlike the stories that the bundled models know; empty if it may be one.

    Only words, numbers and the question's form are checked, not the sense: a text that passes may still be answered
    wrong.

    >>> unlike_stories("Why is the sky blue? 2 reasons?")
    "no story has 'why', 'sky', 'blue'"
    """
    words = _words_of(text)
    unknown = [word for word in words if word not in _known_words()]
    if len(unknown) > len(words) * _FEW_WORDS:
        return f"no story has {', '.join(map(repr, islice(dict.fromkeys(unknown), 3)))}"
    numbers = [digits.lstrip("0") or "0" for digits in re.findall(r"\d+", text)]
    if not numbers:
        return "it has no number"
    longest = max(map(len, numbers))
    if longest > _LONGEST_ANSWER:
        return f"no story has a number of {longest} digits"
    return f"no story has {largest}" if (largest := max(map(int, numbers))) > _LARGEST_NUMBER else ""


def _words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


@cache
def _known_words() -> frozenset[str]:
    stories = islice(word_problems("train"), _STORIES)
    return frozenset(word for story in stories for word in _words_of(f"question answer {story.question}"))
