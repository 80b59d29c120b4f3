"""HumanEval: functions to complete, which are run against the problem's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from cactus_decoding.core.files.jsonl import read_objects, text_of
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.sandbox.sandbox import run_program
from cactus_decoding.lab.evaluation.tasks.task import Task

ENDS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""What ends a function, as lm-evaluation-harness has it."""
FENCE = "```"
ASKED = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```\n",
    "Here is the completed function:\n```python\n{prompt}\n",
)
"""The message of a chat and how its answer begins: lm-evaluation-harness's task ``humaneval_instruct``."""


@dataclass(frozen=True)
class HumanEval:
    """HumanEval from its published JSON Lines, gzipped or not: right is what passes the problem's own tests.

    Objects with a ``task_id``, a ``prompt``, a ``test`` and an ``entry_point``. Plain text is asked and read as
    lm-evaluation-harness's ``humaneval``, a chat as its ``humaneval_instruct``. The programs that models write are run:
    see `run_program` for what they are kept from.

    Source: Chen et al., arXiv 2107.03374.
    """

    path: str

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        """Return the task."""
        programs = Programs(chat)
        problems = tuple(islice(self._problems(programs, chat), limit))
        stop = (*ENDS, "\n" + FENCE) if chat else ENDS
        return Task("humaneval", problems, stop=stop, judge=programs, runs_code=True)

    def _problems(self, programs: Programs, chat: bool) -> Iterator[Problem]:
        for _, where, value in read_objects(self.path):
            prompt, name = text_of(value, "prompt", where), text_of(value, "task_id", where)
            check = f"{text_of(value, 'test', where)}\ncheck({text_of(value, 'entry_point', where)})"
            programs.parts[name] = prompt, check
            if chat:
                message, begun = (text.format(prompt=prompt) for text in ASKED)
                yield Problem(name, message, check, begun=begun)
            else:
                yield Problem(name, prompt, check)


@dataclass(frozen=True)
class Programs:
    """Judges answers by running them; ``parts`` are each problem's prompt and tests."""

    chat: bool
    parts: dict[str, tuple[str, str]] = field(default_factory=dict)

    def program(self, problem: Problem, text: str) -> str:
        """Return the program that an answer makes; of a chat's what stands before the end of its code block."""
        prompt, check = self.parts[problem.id]
        written = text.partition(FENCE)[0] if self.chat else text
        return f"{prompt}{written}\n{check}"

    def __call__(self, problem: Problem, text: str) -> bool:
        """Say whether an answer passes."""
        return run_program(self.program(problem, text)).passed
