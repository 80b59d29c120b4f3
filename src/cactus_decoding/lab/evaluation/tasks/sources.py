"""Where tasks come from: one dataclass per kind, the registry, and spellings such as ``gsm8k:path=test.jsonl``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from cactus_decoding.core.checks import check_choice, check_integer
from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.files.jsonl import read_objects, text_field
from cactus_decoding.core.spelling import parse
from cactus_decoding.lab.evaluation.chat import from_settings
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.tasks.benchmarks import Gsm8k, HumanEval, IfEval, SpecBench
from cactus_decoding.lab.evaluation.tasks.judging import same_value
from cactus_decoding.lab.evaluation.tasks.reading import (
    EXTRACTORS,
    Extractor,
    after_hashes,
    canonical_number,
    check_math,
    extractor,
    final_number,
    reference,
)
from cactus_decoding.lab.evaluation.tasks.task import Task, task_in_chat
from cactus_decoding.zoo.word_problems import word_problems

logger = logging.getLogger(__name__)
USUAL_WORD_PROBLEMS = 500
"""How many of the word problems are asked by default: they never end."""


@dataclass(frozen=True)
class WordProblems:
    """The bundled word problems, grouped by their number of steps; the split ``test`` is held out."""

    split: str = "test"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("split", self.split, ("train", "validation", "test"))
        check_integer("seed", self.seed, 0)

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        drawn = word_problems(self.split, seed=self.seed)  # type: ignore[arg-type]
        problems = tuple(
            Problem(
                f"{self.split}-{self.seed}-{i}",
                each.question if chat else each.prompt,
                str(each.answer),
                f"{each.num_steps} steps",
            )
            for i, each in enumerate(islice(drawn, limit or USUAL_WORD_PROBLEMS))
        )
        name = "word_problems"
        if self != WordProblems():
            name += f":split={self.split},seed={self.seed}"
        return Task(name, problems, after_hashes)


@dataclass(frozen=True)
class Mathematics:
    """Judges whether a text's answer has the value of the problem's, by math-verify where it is no plain number."""

    name: ClassVar[str] = "math"

    def check(self) -> None:
        check_math()

    def __call__(self, problem: Problem, text: str) -> bool:
        assert problem.answer is not None
        wanted = canonical_number(problem.answer)
        return (wanted is not None and final_number(text) == wanted) or same_value(problem.answer, text)


@dataclass(frozen=True)
class JsonLines:
    """Any JSON Lines of objects with a ``prompt``, and optionally an ``answer``, an ``id`` and a ``group``."""

    path: str
    # how the model's text and the answer are read, such as last_number; "none" asks without a score
    extract: str = ""
    pattern: str = ""  # with extract=regex: the last match of its first group (or of all of it); \x2c is a comma
    name: str = ""  # what result files call the task; the file's name without its ending, if empty
    template: str = "{prompt}"  # in a chat the user's message; \n is a new line
    stop: str = ""  # ends an answer; \n is a new line

    def __post_init__(self) -> None:
        self._extractor()
        if "{prompt}" not in self.template:
            raise ValueError(f"template must contain {{prompt}}, but is {self.template!r}")

    def _extractor(self) -> Extractor | None:
        if self.extract == "math" and not self.pattern:
            return str.strip
        return None if self.extract in ("", "none") else extractor(self.extract, self.pattern)

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        stop = (self.stop.replace("\\n", "\n"),) if self.stop else ()
        problems, name = tuple(islice(self._problems(), limit)), f"jsonl:{self.name or Path(self.path).stem}"
        if self.extract == "math":
            return Task(name, problems, stop=stop, judge=Mathematics())
        return Task(name, problems, self._extractor(), stop)

    def _problems(self) -> Iterator[Problem]:
        extract, template = self._extractor(), self.template.replace("\\n", "\n")
        for number, where, value in read_objects(self.path):
            prompt = template.replace("{prompt}", text_field(value, "prompt", where))
            found, name = None, str(value.get("id", number))
            if not self.extract and "answer" in value:
                raise ValueError(
                    f"{where}: there is an answer, but it is not said how it is read: add extract=last_number (or "
                    f"{', '.join(name for name in EXTRACTORS if name != 'last_number')}, math, regex) to the task, or "
                    "extract=none to ask without a score"
                )
            if extract is not None:
                answer = text_field(value, "answer", where, numbers=True)
                found = reference(extract, answer)
                if found is None:
                    raise ValueError(
                        f"{where}: the answer of problem {name!r} must name an option from A to J, such as 'B', 'b' or "
                        f"'(B) Paris', but is {answer[-40:]!r}"
                    )
            yield Problem(name, prompt, found, str(value.get("group", "")))


SOURCES: Mapping[str, type[Any]] = MappingProxyType(
    {
        "word_problems": WordProblems,
        "gsm8k": Gsm8k,
        "humaneval": HumanEval,
        "ifeval": IfEval,
        "spec_bench": SpecBench,
        "jsonl": JsonLines,
    }
)
"""Every kind of task by its name."""


def file_of(text: str) -> Path | None:
    """Return the file that a task's spelling names, if it names one.

    Example:
        >>> file_of("gsm8k:path=test.jsonl"), file_of("word_problems")
        (PosixPath('test.jsonl'), None)
    """
    path = getattr(parse("task", text, SOURCES), "path", None)
    return None if path is None else expanded(path)


def parse_task(text: str, problems: int | None = None, *, chat: bool = False) -> Task:
    """Return the task that a text spells, or its first problems: a kind, then ``:`` and ``parameter=value`` pairs.

    In a ``chat`` prompts are a user's messages. Raises `ValueError` also for fewer problems than are asked for.
    """
    task: Task = parse("task", text, SOURCES).task(problems, chat=chat)
    if not task.problems:
        raise ValueError(f"task {text!r} has no problems")
    if problems is not None and len(task.problems) < problems:
        raise ValueError(f"task {text!r} has {len(task.problems)} problems, but {problems} are asked for")
    ids = [problem.id for problem in task.problems]
    if len(set(ids)) < len(ids):
        twice = next(each for place, each in enumerate(ids) if each in ids[:place])
        raise ValueError(f"task {text!r} has two problems with the id {twice!r}")
    return task


def parse_tasks(
    spelled: Sequence[str],
    lm_eval: str | None = None,
    lm_eval_path: Path | None = None,
    problems: int | None = None,
    *,
    chat: bool = False,
) -> dict[str, Task]:
    """Return tasks by their names: those spelled, and those of lm-evaluation-harness; the word problems for neither.

    Raises `ValueError` also for two tasks of the same name.
    """
    spelled = list(dict.fromkeys(spelled or ([] if lm_eval else ["word_problems"])))
    made = [parse_task(text, problems, chat=chat) for text in spelled]
    if lm_eval is not None:
        from cactus_decoding.lab.evaluation.tasks.harness import harness_tasks

        made += harness_tasks(lm_eval, lm_eval_path, problems)
    tasks = {each.name: each for each in made}
    if len(tasks) < len(made):
        twice = next(each.name for each in made if tasks[each.name] is not each)
        raise ValueError(f"two tasks are named {twice!r}; name one of them, as in 'jsonl:path=FILE,name=other'")
    return tasks


def check_may_run(tasks: Iterable[Task], allowed: bool) -> None:
    """Raise `ValueError` if models' programs would run without permission; log what they could do."""
    running = [task.name for task in tasks if task.runs_code]
    if not running:
        return
    if not allowed:
        raise ValueError(
            f"{running[0]} runs programs that a model wrote: read in docs/evaluation.md what they are kept from, and "
            "give --allow-code-execution"
        )
    from cactus_decoding.lab.evaluation.sandbox import missing_isolation

    if missing := missing_isolation():
        logger.info("this system permits no namespaces for: %s; programs can get round what Python forbids", missing)


def recorded_task(settings: Mapping[str, Any], tokenizer: Any) -> Task:
    """Return the task of a recording's settings, with the chat template applied if it was asked in a chat."""
    chat = from_settings(settings)
    return task_in_chat(parse_task(settings["task"], chat=chat is not None), tokenizer, chat)


def check_not_held_out(spelling: str) -> None:
    """Raise `ValueError` for a task of the bundled word problems that is kept for tests."""
    source = parse("task", spelling, SOURCES)
    if isinstance(source, WordProblems) and source.split == "test":
        raise ValueError(
            f"the problems of {spelling!r} are held out for tests: learn from word_problems:split=train, or "
            "split=validation"
        )
