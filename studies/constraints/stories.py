"""Word problems of which half cannot be answered, because a number is missing or contradicts another one.

Every story begins as one of the zoo's. Of its numbers one is chosen that is stated in one fact only and on which the
answer depends: there is another number in its place with which the story is still a proper one, and has another answer.
A story is then told in one of the ways of `ANSWERABLE` or `UNANSWERABLE`. Both have short and long forms, vague words,
and reminders that say a fact again, so that neither a word nor the length gives away which of the two it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cactus_decoding.zoo.word_problems import extract_answer, format_prompt, split_of
from cactus_decoding.zoo.word_problems.families import STORY_FAMILIES
from cactus_decoding.zoo.word_problems.generator import SplitName
from cactus_decoding.zoo.word_problems.story import (
    Equation,
    Story,
    UnsuitableStoryError,
    equation,
    write_question,
    write_solution,
)

REFUSAL = "#### cannot tell"
VAGUE = ("some", "many", "a few")
REMINDERS = ("Note: ", "Remember: ", "Again: ")
VAGUE_NOISE = ("The way to the {place} is {n} miles long.", "It took {n} days.", "That was {n} years ago.")
NAMED_BY_THE_QUESTION = re.compile(
    r"pays with \d+|gives the clerk \d+|^A \w+ costs \d+ dollars\.|wants a \w+ for \d+|^The order is for \d+|needs \d+"
    r"|^The whole way is \d+|^The goal is \d+|^There are \d+ \w+ in all\."
)
"""Facts that a question asks about: without such a fact the question stays, and cannot be answered."""

MISSING_WORDINGS = (
    "a number is missing.",
    "one number is missing.",
    "here one number is missing.",
    "the story is missing a number.",
    "what is needed is missing.",
    "the number that is needed is missing.",
    "there is a number missing.",
)
CONTRADICTED_WORDINGS = (
    "the story gives both {a} and {b}.",
    "here the story has {a} and also {b}.",
    "the numbers {a} and {b} are given for one thing.",
    "one number is given as {a} and as {b}.",
    "there are both {a} and {b} for one number.",
)
Telling = Callable[[Story, random.Random], tuple[list[str], list[str]]]
"""Returns a story's facts as they are told, and noise."""
_LEADS = ("", "", "But ", "So ", "Now ", "Then ", "Next, ")  # most of them begin ordinary lines as well
_FIRST_LEADS = ("", "", "First, ", "To begin, ")
_MIDDLE_LEADS = ("", "", "Next, ", "Then ", "So ", "Now ", "After that, ")


@dataclass(frozen=True)
class ConstrainedStory:
    """A story that may have no answer, which is then None.

    Its solution ends in the answer, or in what it is that is missing. ``kind`` is one of `ANSWERABLE` or
    `UNANSWERABLE`; a story of the latter has two completions that agree with what is told, with their answers.
    """

    question: str
    solution: str
    answer: int | None
    kind: str
    num_steps: int
    completions: tuple[tuple[str, int], ...] = ()

    @property
    def prompt(self) -> str:
        return format_prompt(self.question)


@dataclass(frozen=True)
class Pivot:
    """A number on which the answer depends, the place of the fact that states it, and another number in its place.

    With that the story is a proper one, of these equations.
    """

    place: int
    number: int
    other: int
    equations: list[Equation]


def with_number(equations: Sequence[Equation], number: int, other: int) -> list[Equation]:
    """Work equations out again with another number in the place of one; raises `UnsuitableStoryError`."""
    made: dict[int, Equation] = {}

    def operand(value: int | Equation) -> int | Equation:
        if isinstance(value, Equation):
            return made[id(value)]
        return other if value == number else value

    for each in equations:  # which come after those that they need
        made[id(each)] = equation(each.operator, operand(each.left), operand(each.right), *each.wordings)
    return list(made.values())


def pivots(story: Story) -> list[tuple[int, int]]:
    """Return the numbers that one fact states once and the solution takes from it, with that fact's place."""
    stated = [(place, int(text)) for place, fact in enumerate(story.facts) for text in re.findall(r"\d+", fact)]
    numbers = [number for _, number in stated]
    used = {operand for each in story.equations for operand in (each.left, each.right) if isinstance(operand, int)}
    return [(place, number) for place, number in stated if numbers.count(number) == 1 and number in used]


def draw_pivot(story: Story, rng: random.Random, suits: Callable[[str], object] = lambda fact: True) -> Pivot:
    """Draw a number that decides the answer, of a fact that suits; raises `UnsuitableStoryError` if there is none."""
    taken = {int(text) for fact in story.facts for text in re.findall(r"\d+", fact)}
    candidates = [(place, number) for place, number in pivots(story) if suits(story.facts[place])]
    rng.shuffle(candidates)
    for place, number in candidates:
        others = [n for n in range(max(2, number - 20), number + 21) if n not in taken]
        rng.shuffle(others)
        for other in others:
            try:
                equations = with_number(story.equations, number, other)
            except UnsuitableStoryError:
                continue
            if equations[-1].value != story.equations[-1].value:
                return Pivot(place, number, other, equations)
    raise UnsuitableStoryError


def telling(fact: str, number: int, other: int | str) -> str:
    """Return a fact with something else in the place of its number."""
    told = re.sub(rf"\b{number}\b", str(other), fact)
    return told[0].upper() + told[1:]


def _refusal(story: Story, pivot: Pivot, wordings: Sequence[str], rng: random.Random) -> tuple[str, int]:
    """Return a solution that works out what can be, says why it stops, and refuses; and its arithmetic steps."""
    stuck: set[int] = set()  # equations that cannot be worked out without the number
    for each in story.equations:  # which come after those that they need
        if pivot.number in (each.left, each.right) or any(id(needed) in stuck for needed in each.needs()):
            stuck.add(id(each))
    waiting = [each for each in story.equations if id(each) not in stuck]
    lines: list[str] = []
    done: set[int] = set()
    while waiting:
        chosen = rng.choice([each for each in waiting if all(id(needed) in done for needed in each.needs())])
        waiting.remove(chosen)
        done.add(id(chosen))
        lines.append(rng.choice(_MIDDLE_LEADS if lines else _FIRST_LEADS) + chosen.sentence(rng))
    a, b = rng.sample((pivot.number, pivot.other), 2)
    lines.append(rng.choice(_LEADS) + rng.choice(wordings).format(a=a, b=b))
    return "\n".join([*(line[0].upper() + line[1:] for line in lines), REFUSAL]), len(lines)


def _told(story: Story, facts: list[str], noise: Sequence[str], rng: random.Random) -> str:
    return write_question(replace(story, facts=facts, distractors=[*story.distractors, *noise]), rng)


def _reminded(facts: list[str], place: int, reminder: str, rng: random.Random) -> list[str]:
    """Return facts with a reminder somewhere behind the one that it is about."""
    told = list(facts)
    told.insert(rng.randint(place + 1, len(told)), rng.choice(REMINDERS) + reminder)
    return told


def _replaced(facts: list[str], place: int, fact: str) -> list[str]:
    return [*facts[:place], fact, *facts[place + 1 :]]


def _vague_noise(story: Story, rng: random.Random) -> tuple[list[str], list[str]]:
    place = rng.choice(("shop", "market", "school", "park"))
    return story.facts, [rng.choice(VAGUE_NOISE).format(n=rng.choice(VAGUE), place=place)]


def _said_twice(first: bool, second: bool) -> Telling:
    """Tell a fact twice, its number or a vague word each time."""

    def told(story: Story, rng: random.Random) -> tuple[list[str], list[str]]:
        pivot = draw_pivot(story, rng)
        fact = story.facts[pivot.place]
        said = [fact if full else telling(fact, pivot.number, rng.choice(VAGUE)) for full in (first, second)]
        return _reminded(_replaced(story.facts, pivot.place, said[0]), pivot.place, said[1], rng), []

    return told


ANSWERABLE: dict[str, tuple[float, Telling]] = {
    "ordinary": (0.4, lambda story, rng: (story.facts, [])),
    "vague noise": (0.1, _vague_noise),
    "said twice": (0.2, _said_twice(True, True)),
    "vague, then said": (0.2, _said_twice(False, True)),
    "said, then vague": (0.1, _said_twice(True, False)),
}
UNANSWERABLE = {"left out": 0.25, "vague": 0.2, "vague twice": 0.2, "contradicted": 0.35}


def _answerable(kind: str, story: Story, rng: random.Random) -> ConstrainedStory:
    question = _told(story, *ANSWERABLE[kind][1](story, rng), rng)
    return ConstrainedStory(question, write_solution(story, rng), story.equations[-1].value, kind, len(story.equations))


def _unanswerable(kind: str, family: str, story: Story, rng: random.Random) -> ConstrainedStory:
    def suits(fact: str) -> object:
        if kind != "left out":
            return True
        return NAMED_BY_THE_QUESTION.search(fact) or (family == "comparison" and fact == story.facts[0])

    pivot = draw_pivot(story, rng, suits)
    fact = story.facts[pivot.place]
    vague = [telling(fact, pivot.number, rng.choice(VAGUE)) for _ in range(2)]
    other = telling(fact, pivot.number, pivot.other)
    said = rng.sample((fact, other), 2)
    facts = {
        "left out": [*story.facts[: pivot.place], *story.facts[pivot.place + 1 :]],
        "vague": _replaced(story.facts, pivot.place, vague[0]),
        "vague twice": _reminded(_replaced(story.facts, pivot.place, vague[0]), pivot.place, vague[1], rng),
        "contradicted": _reminded(_replaced(story.facts, pivot.place, said[0]), pivot.place, said[1], rng),
    }[kind]
    if not facts:
        raise UnsuitableStoryError
    wordings = CONTRADICTED_WORDINGS if kind == "contradicted" else MISSING_WORDINGS
    solution, steps = _refusal(story, pivot, wordings, rng)
    completions = tuple(
        (" ".join(_replaced(story.facts, pivot.place, each)), equations[-1].value)
        for each, equations in ((fact, story.equations), (other, pivot.equations))
    )
    return ConstrainedStory(_told(story, facts, [], rng), solution, None, kind, steps, completions)


def draw_constrained(rng: random.Random, answerable: bool, two_numbers: float = 0.0) -> ConstrainedStory:
    """Draw a story of any family, kind and split; ``two_numbers`` is that of `constrained_stories`."""
    weights = {kind: weight for kind, (weight, _) in ANSWERABLE.items()} if answerable else UNANSWERABLE
    if two_numbers and rng.random() < two_numbers:
        kind = "said twice" if answerable else "contradicted"
    else:
        [kind] = rng.choices(list(weights), list(weights.values()))
    while True:
        family = rng.choice(list(STORY_FAMILIES))
        try:
            story = STORY_FAMILIES[family](rng)
            if 2 <= len(story.equations) <= 6:
                return _answerable(kind, story, rng) if answerable else _unanswerable(kind, family, story, rng)
        except (UnsuitableStoryError, IndexError):  # as in the zoo: IndexError where there was nothing to choose from
            continue


def constrained_stories(split: SplitName, seed: int = 0, two_numbers: float = 0.0) -> Iterator[ConstrainedStory]:
    """Yield stories of one split without end, by turns one that has an answer and one that has none.

    ``two_numbers`` is the share of additional ones that state a fact twice, with the same number or with another, which
    is the hardest to learn.
    """
    rng = random.Random(f"constrained stories {seed}")
    answerable = True
    while True:
        story = draw_constrained(rng, answerable, two_numbers)
        if split_of(story.question) == split:
            answerable = not answerable
            yield story


def is_refusal(text: str) -> bool:
    """Say whether a response ends in a refusal.

    >>> is_refusal("So a number is missing.\\n#### cannot tell"), is_refusal("#### 5"), is_refusal("#### cannot 5")
    (True, False, False)
    """
    _, mark, end = text.partition("####")
    return bool(mark) and end.strip() == "cannot tell"


def outcome(answer: int | None, text: str) -> str:
    """Return what a response is to a story with an answer, or with None.

    r: right; w: a wrong number; f: refused, though it has an answer; R: refused, as it should; v: invented a number;
    o: neither a number nor a refusal.

    >>> [outcome(5, "#### 5"), outcome(5, "#### cannot tell"), outcome(None, "#### 5"), outcome(None, "####")]
    ['r', 'f', 'v', 'o']
    """
    if is_refusal(text):
        return "R" if answer is None else "f"
    number = extract_answer(text)
    if number is None:
        return "o"
    return "v" if answer is None else "r" if number == answer else "w"
