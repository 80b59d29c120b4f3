"""The parts a word problem is built from: facts, equations with their wordings, and a question."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

Operator = Literal["+", "-", "*", "/"]
LARGEST_NUMBER = 400  # stories with a larger number are drawn again, as the models are small


class UnsuitableStoryError(Exception):
    """The drawn numbers make no sensible story (too large, negative, or an inexact division)."""


@dataclass(frozen=True, eq=False)
class Equation:
    """One line of a solution: ``left operator right = value``, with sentences of equal worth that state it.

    Each wording contains ``{e}``, which becomes the worked expression, for instance ``4 * 6 = 24``.
    """

    operator: Operator
    left: int | Equation
    right: int | Equation
    wordings: tuple[str, ...]
    value: int

    def needs(self) -> list[Equation]:
        return [operand for operand in (self.left, self.right) if isinstance(operand, Equation)]

    def sentence(self, rng: random.Random, habitual: bool = False) -> str:
        """Draw the operands' order where both orders are right, and a wording; if ``habitual``, take the first one."""
        left, right = number_in(self.left), number_in(self.right)
        if self.operator in "+*" and rng.random() < 0.5:
            left, right = right, left
        wording = self.wordings[0] if habitual else rng.choice(self.wordings)
        return wording.format(e=f"{left} {self.operator} {right} = {self.value}")


def number_in(operand: int | Equation) -> int:
    return operand.value if isinstance(operand, Equation) else operand


def equation(operator: Operator, left: int | Equation, right: int | Equation, *wordings: str) -> Equation:
    """Compute one equation, or raise `UnsuitableStoryError` where its value would not suit a story."""
    a, b = number_in(left), number_in(right)
    if operator == "/" and (b == 0 or a % b):
        raise UnsuitableStoryError
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[operator]
    if not 0 < value <= LARGEST_NUMBER:
        raise UnsuitableStoryError
    return Equation(operator, left, right, wordings, value)


@dataclass
class Story:
    """A problem before it is written out. The last equation gives the answer.

    Several ways to say something stand in one text, with " / " between them.
    """

    rng: random.Random
    facts: list[str] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    distractors: list[str] = field(default_factory=list)

    def say(self, ways: str) -> str:
        return self.rng.choice(ways.split(" / "))

    def tell(self, ways: str) -> None:
        self.facts.append(self.say(ways) if " / " in ways else ways)

    def ask(self, ways: str) -> None:
        self.questions += ways.split(" / ")

    def solve(self, operator: Operator, left: int | Equation, right: int | Equation, ways: str) -> Equation:
        self.equations.append(equation(operator, left, right, *ways.split(" / ")))
        return self.equations[-1]


_FIRST_LEADS = ("", "", "First, ", "To begin, ", "We start here: ")
_MIDDLE_LEADS = ("", "", "Next, ", "Then ", "So ", "Now ", "After that, ")
_LAST_LEADS = ("", "So ", "Finally, ", "In the end, ", "Therefore ")


def write_question(story: Story, rng: random.Random) -> str:
    """Write the facts in order, with the distractors anywhere after the first fact, and a question."""
    sentences = list(story.facts)
    for distractor in story.distractors:
        sentences.insert(rng.randint(1, len(sentences)), distractor)
    return " ".join([*sentences, rng.choice(story.questions)])


def write_solution(story: Story, rng: random.Random, habit: float = 0.0) -> str:
    """Write the equations, in a random one of the orders that respect what each needs, and the answer line."""
    waiting, done = list(story.equations), set[int]()
    lines: list[str] = []
    while waiting:
        ready = [s for s in waiting if all(id(needed) in done for needed in s.needs())]
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        done.add(id(chosen))
        leads = _FIRST_LEADS if not lines else (_MIDDLE_LEADS if waiting else _LAST_LEADS)
        habitual = habit > 0 and rng.random() < habit
        sentence = ("" if habitual else rng.choice(leads)) + chosen.sentence(rng, habitual)
        lines.append(sentence[0].upper() + sentence[1:])
    return "\n".join([*lines, f"#### {story.equations[-1].value}"])
