"""Where tasks come from: one dataclass a kind, the registry, and the spelling such as ``gsm8k:path=test.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cactus_decoding.arguments.checks import check_choice, check_integer
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.evaluation.engines.engine import Problem
from cactus_decoding.evaluation.tasks.task import EXTRACTORS, Extractor, Task, after_hashes, extractor, last_number
from cactus_decoding.files.jsonl import read_objects, text_of
from cactus_decoding.zoo.word_problems import format_prompt, word_problems

USUAL_WORD_PROBLEMS = 500
"""How many of the word problems are asked where nobody says: they never end."""


@dataclass(frozen=True)
class WordProblems:
    """The bundled word problems, grouped by their number of steps; those of the split ``test`` are held out.

    Example:
        >>> WordProblems().task(1).problems[0].id
        'test-0-0'
    """

    split: str = "test"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("split", self.split, ("train", "validation", "test"))
        check_integer("seed", self.seed, 0)

    def task(self, limit: int | None) -> Task:
        """Return the task."""
        drawn = word_problems(self.split, seed=self.seed)  # type: ignore[arg-type]
        problems = tuple(
            Problem(f"{self.split}-{self.seed}-{i}", each.prompt, str(each.answer), f"{each.num_steps} steps")
            for i, each in enumerate(islice(drawn, limit or USUAL_WORD_PROBLEMS))
        )
        name = "word_problems"
        if self != WordProblems():
            name += f":split={self.split},seed={self.seed}"
        return Task(name, problems, after_hashes)


@dataclass(frozen=True)
class Gsm8k:
    """GSM8K from its published JSON Lines: objects with a ``question``, and an ``answer`` that ends in ``#### 18``.

    Source: Cobbe et al., arXiv 2110.14168.
    """

    path: str

    def task(self, limit: int | None) -> Task:
        """Return the task."""
        # models that were not trained on the format end in the number without the mark
        extract = lambda text: after_hashes(text) or last_number(text)  # noqa: E731
        return Task("gsm8k", tuple(islice(self._problems(), limit)), extract, stop=("\nQuestion:",))

    def _problems(self) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            question, answer = text_of(value, "question", where), text_of(value, "answer", where)
            reference = after_hashes(answer)
            if reference is None:
                raise ValueError(f"{where}: the answer must end in '#### ' and a number, but is {answer[-40:]!r}")
            yield Problem(str(number), format_prompt(question), reference)


@dataclass(frozen=True)
class SpecBench:
    """Spec-Bench's prompts, grouped by category: for speed and divergence, without a score.

    Objects with a ``question_id``, a ``category`` and ``turns``, of which the first is asked.

    Source: Xia et al., arXiv 2401.07851.
    """

    path: str

    def task(self, limit: int | None) -> Task:
        """Return the task."""
        return Task("spec_bench", tuple(islice(self._problems(), limit)))

    def _problems(self) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            turns = value.get("turns")
            if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
                raise ValueError(f"{where}: 'turns' must be a list that begins with a text, but is {turns!r}")
            category = text_of(value, "category", where)
            yield Problem(str(value.get("question_id", number)), turns[0], None, category)


@dataclass(frozen=True)
class JsonLines:
    r"""Any JSON Lines of objects with a ``prompt``, and optionally an ``answer``, an ``id`` and a ``group``.

    Attributes:
        path: the file.
        extract: how both the model's text and the answer are read, such as ``last_number``; all have an answer, then.
            ``none`` asks without a score, which is what problems without answers need not say.
        pattern: with ``extract=regex``, a regular expression; what its first group (or all of it) matches last counts.
            Write a comma as ``\x2c``.
        name: what result files call the task; the file's name without its ending, if empty.
        template: the prompt, where ``{prompt}`` stands for the object's; ``\n`` is a new line.
        stop: a text that ends an answer; ``\n`` is a new line.
    """

    path: str
    extract: str = ""
    pattern: str = ""
    name: str = ""
    template: str = "{prompt}"
    stop: str = ""

    def __post_init__(self) -> None:
        self._extractor()
        if "{prompt}" not in self.template:
            raise ValueError(f"template must contain {{prompt}}, but is {self.template!r}")

    def _extractor(self) -> Extractor | None:
        return None if self.extract in ("", "none") else extractor(self.extract, self.pattern)

    def task(self, limit: int | None) -> Task:
        """Return the task."""
        stop = (self.stop.replace("\\n", "\n"),) if self.stop else ()
        problems = tuple(islice(self._problems(), limit))
        return Task(f"jsonl:{self.name or Path(self.path).stem}", problems, self._extractor(), stop)

    def _problems(self) -> Iterator[Problem]:
        extract, template = self._extractor(), self.template.replace("\\n", "\n")
        for number, where, value in read_objects(self.path):
            prompt = template.replace("{prompt}", text_of(value, "prompt", where))
            reference = None
            if not self.extract and "answer" in value:
                raise ValueError(
                    f"{where}: there is an answer, but it is not said how it is read: add extract=last_number (or "
                    f"{', '.join(name for name in EXTRACTORS if name != 'last_number')}, regex) to the task, or "
                    "extract=none to ask without a score"
                )
            if extract is not None:
                answer = text_of(value, "answer", where, numbers=True)
                # an answer is given as it is, or as the text in which it is looked for
                reference = extract(answer) if extract(answer) is not None else answer.strip()
            yield Problem(str(value.get("id", number)), prompt, reference, str(value.get("group", "")))


SOURCES: Mapping[str, type[Any]] = MappingProxyType(
    {"word_problems": WordProblems, "gsm8k": Gsm8k, "spec_bench": SpecBench, "jsonl": JsonLines}
)
"""Every kind of task by its name."""


def file_of(text: str) -> Path | None:
    """Return the file that a task's spelling names; None where there is none.

    Example:
        >>> file_of("gsm8k:path=test.jsonl"), file_of("word_problems")
        (PosixPath('test.jsonl'), None)
    """
    path = getattr(parse("task", text, SOURCES), "path", None)
    return None if path is None else Path(path).expanduser()


def parse_task(text: str, problems: int | None = None) -> Task:
    """Return the task that a text spells, or its first problems: a kind, then ``:`` and ``parameter=value`` pairs.

    Raises:
        OSError: for a file that cannot be read.
        ValueError: for an unknown task or parameter, a malformed line, or fewer problems than are asked for.

    Example:
        >>> parse_task("word_problems:split=validation", 3).problems[2].id
        'validation-0-2'
    """
    task: Task = parse("task", text, SOURCES).task(problems)
    if not task.problems:
        raise ValueError(f"task {text!r} has no problems")
    if problems is not None and len(task.problems) < problems:
        raise ValueError(f"task {text!r} has {len(task.problems)} problems, but {problems} are asked for")
    ids = [problem.id for problem in task.problems]
    if len(set(ids)) < len(ids):
        twice = next(each for place, each in enumerate(ids) if each in ids[:place])
        raise ValueError(f"task {text!r} has two problems with the id {twice!r}")
    return task


def check_not_held_out(spelling: str) -> None:
    """Raise `ValueError` for a task of the bundled word problems that is kept for tests.

    Example:
        >>> check_not_held_out("word_problems:split=train")
        >>> check_not_held_out("word_problems")
        Traceback (most recent call last):
        ValueError: the problems of 'word_problems' are held out for tests: learn from word_problems:split=train, or
        split=validation
    """
    source = parse("task", spelling, SOURCES)
    if isinstance(source, WordProblems) and source.split == "test":
        raise ValueError(
            f"the problems of {spelling!r} are held out for tests: learn from word_problems:split=train, or "
            "split=validation"
        )
