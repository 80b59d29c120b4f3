"""What is asked: problems, how an answer is judged, and the spelling of tasks on the command line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING

from cactus_decoding.evaluation.spelling import parse_spelling

if TYPE_CHECKING:
    from cactus_decoding.evaluation.cells import Cell
    from cactus_decoding.evaluation.engines import Answer, Engine

MOST = 2**31
"""More problems than any task has."""


@dataclass(frozen=True)
class Problem:
    """One thing that is asked.

    Attributes:
        id: its name within the task.
        prompt: the text that a model is given.
        answer: what a right answer comes to, after extraction; None where there is no right or wrong.
        group: the difficulty, or the category.
    """

    id: str
    prompt: str
    answer: str | None = None
    group: str = ""


@dataclass(frozen=True, eq=False)
class Task:
    """Problems and how their answers are read.

    Attributes:
        name: what result files call it.
        problems: in order.
        extract: turns an answer's text into what is compared with `Problem.answer`; None where nothing is scored.
        stop: strings that end an answer.
    """

    name: str
    problems: tuple[Problem, ...]
    extract: Callable[[str], str | None] | None = None
    stop: tuple[str, ...] = ()

    def digest_of(self, problems: int) -> str:
        """Return a hash of the first problems: cells of the same name must have the same."""
        text = json.dumps([asdict(problem) for problem in self.problems[:problems]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_right(self, problem: Problem, text: str) -> bool | None:
        """Say whether an answer is the problem's; None where nothing is scored."""
        if self.extract is None or problem.answer is None:
            return None
        return self.extract(text) == problem.answer

    def check(self, engine: Engine, cell: Cell) -> None:
        """Raise `ValueError` where a problem cannot be answered, before any is."""
        for problem in self.problems[: cell.problems]:
            engine.check_prompt(cell, problem)

    def answer(self, engine: Engine, cell: Cell) -> Iterator[tuple[Problem, Answer, bool | None]]:
        """Yield each problem of a cell, its answer, and whether that is right."""
        from cactus_decoding.evaluation.cells import seed_of

        for place, problem in enumerate(self.problems[: cell.problems]):
            answer = engine.answer(cell, problem.prompt, self.stop, seed_of(cell.seed, place))
            yield problem, answer, self.is_right(problem, answer.text)


def word_problems(limit: int, *, split: str = "test", seed: str = "0") -> Task:
    """Return the bundled word problems, grouped by the number of steps; the split ``test`` is held out.

    Example:
        >>> word_problems(2).problems[0].id
        'test-0-0'
    """
    from cactus_decoding import word_problems as bundled

    if split not in ("train", "validation", "test"):
        raise ValueError(f"split of word_problems must be train, validation or test, but is {split!r}")
    if not seed.isdecimal():
        raise ValueError(f"seed of word_problems must be an integer of at least 0, but is {seed!r}")
    drawn = islice(bundled.word_problems(split, seed=int(seed)), limit)  # type: ignore[arg-type]
    problems = tuple(
        Problem(
            f"{split}-{seed}-{i}", drawn_problem.prompt, str(drawn_problem.answer), f"{drawn_problem.num_steps} steps"
        )
        for i, drawn_problem in enumerate(drawn)
    )
    varied = [f"{k}={v}" for k, v, usual in (("split", split, "test"), ("seed", seed, "0")) if v != usual]
    return Task("word_problems" + (":" + ",".join(varied) if varied else ""), problems, _bundled_answer)


def _bundled_answer(text: str) -> str | None:
    from cactus_decoding.word_problems import extract_answer

    number = extract_answer(text)
    return None if number is None else str(number)


def _kinds() -> Mapping[str, Callable[..., Task]]:
    return MappingProxyType({"word_problems": word_problems})


def parse_task(text: str, problems: int | None = None) -> Task:
    """Return the task that a text spells: a kind, then ``:`` and comma-separated ``parameter=value`` pairs.

    Args:
        text: the spelling.
        problems: how many are asked, the first of them; all, if None (500 of the word problems, which never end).

    Raises:
        ValueError: for an unknown task or parameter, or a file that is missing or malformed.

    Example:
        >>> parse_task("word_problems", 3).problems[2].group
        '6 steps'
    """
    kinds = _kinds()
    kind, values = parse_spelling(text, kinds, "task")
    limit = problems or (500 if kind == "word_problems" else MOST)
    task = kinds[kind](limit, **values)
    if not task.problems:
        raise ValueError(f"task {text!r} has no problems")
    if problems is not None and len(task.problems) < problems:
        raise ValueError(f"task {text!r} has {len(task.problems)} problems, but {problems} are asked for")
    return task
