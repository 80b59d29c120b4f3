"""Tasks of published files, which users download themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.files.jsonl import read_objects, text_of
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.tasks.task import Task, after_hashes, final_number
from cactus_decoding.zoo.word_problems import format_prompt

IN_A_BOX = "\n\nReason step by step, and put the final answer within \\boxed{}."
"""What a chat adds to a question, so that the answer can be found."""


@dataclass(frozen=True)
class Gsm8k:
    r"""GSM8K from its published JSON Lines: objects with a ``question``, and an ``answer`` that ends in ``#### 18``.

    Right is the number in the last ``\boxed{}``, after the first ``####``, or the last one. In a chat the question is
    asked with a request for a box.

    Source: Cobbe et al., arXiv 2110.14168.

    Attributes:
        path: the file.
        shots: how many solved problems stand before each question, in the file's own words; in a chat too, in the
            place of the request for a box.
        examples: the file whose first problems they are, usually the published training set. Without it they are the
            first of ``path``, which are then not asked.
    """

    path: str
    shots: int = 0
    examples: str = ""

    def __post_init__(self) -> None:
        check_integer("shots", self.shots, 0)
        if self.examples and not self.shots:
            raise ValueError("examples are the file of solved problems: give shots too, as in shots=5,examples=FILE")

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        """Return the task."""
        solved = list(islice(read_objects(self.examples or self.path), self.shots))
        if len(solved) < self.shots:
            raise ValueError(f"{self.examples or self.path} has {len(solved)} problems, but shots are {self.shots}")
        before = "".join(
            format_prompt(text_of(value, "question", where)) + " " + text_of(value, "answer", where) + "\n\n"
            for _, where, value in solved
        )
        skipped = 0 if self.examples else self.shots
        asked = islice(self._problems(before, boxed=chat and not self.shots), skipped, limit and limit + skipped)
        name = f"gsm8k:shots={self.shots}" if self.shots else "gsm8k"
        stop = ("\nQuestion:",) if self.shots or not chat else ()
        return Task(name, tuple(asked), final_number, stop)

    def _problems(self, before: str, *, boxed: bool) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            question, answer = text_of(value, "question", where), text_of(value, "answer", where)
            reference = after_hashes(answer)
            if reference is None:
                raise ValueError(f"{where}: the answer must end in '#### ' and a number, but is {answer[-40:]!r}")
            prompt = question + IN_A_BOX if boxed else before + format_prompt(question)
            yield Problem(str(number), prompt, reference)


@dataclass(frozen=True)
class SpecBench:
    """Spec-Bench's prompts, grouped by its 13 categories: for speed and divergence, without a score.

    Objects with a ``question_id``, a ``category`` and ``turns``. A chat asks all turns, plain text the first.

    Source: Xia et al., arXiv 2401.07851.
    """

    path: str

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        """Return the task."""
        return Task("spec_bench", tuple(islice(self._problems(chat), limit)))

    def _problems(self, chat: bool) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            turns: Any = value.get("turns")
            if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
                raise ValueError(f"{where}: 'turns' must be a list of texts, but is {turns!r}")
            category, further = text_of(value, "category", where), tuple(turns[1:]) if chat else ()
            yield Problem(str(value.get("question_id", number)), turns[0], None, category, further)
