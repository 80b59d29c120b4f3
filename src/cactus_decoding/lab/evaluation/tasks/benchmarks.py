"""Tasks of published files, which users download themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, NamedTuple
from warnings import catch_warnings

from cactus_decoding.core.checks import check_choice, check_integer
from cactus_decoding.core.extras import needing
from cactus_decoding.core.files.jsonl import read_objects, text_field
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.sandbox import run_program
from cactus_decoding.lab.evaluation.tasks.judging import follows, problem_of
from cactus_decoding.lab.evaluation.tasks.reading import after_hashes, final_number
from cactus_decoding.lab.evaluation.tasks.task import Task
from cactus_decoding.zoo.word_problems import format_prompt

IN_A_BOX = "\n\nReason step by step, and put the final answer within \\boxed{}."
"""What a chat adds to a question, so that the answer can be found."""


@dataclass(frozen=True)
class Gsm8k:
    r"""GSM8K from its published JSON Lines: objects with a ``question``, and an ``answer`` that ends in ``#### 18``.

    An answer is the number in the last ``\boxed{}``, after the first ``####``, or the last one. In a chat the prompt
    asks for the box.

    Source: Cobbe et al., arXiv 2110.14168.
    """

    path: str
    shots: int = 0  # solved problems before each question, also in a chat, where they replace the box
    examples: str = ""  # the file of solved problems; without it they are the first of path, which are not asked then

    def __post_init__(self) -> None:
        check_integer("shots", self.shots, 0)
        if self.examples and not self.shots:
            raise ValueError("examples are the file of solved problems: give shots too, as in shots=5,examples=FILE")

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        solved = list(islice(read_objects(self.examples or self.path), self.shots))
        if len(solved) < self.shots:
            raise ValueError(f"{self.examples or self.path} has {len(solved)} problems, but shots are {self.shots}")
        before = "".join(
            format_prompt(text_field(value, "question", where)) + " " + text_field(value, "answer", where) + "\n\n"
            for _, where, value in solved
        )
        skipped = 0 if self.examples else self.shots
        asked = islice(self._problems(before, boxed=chat and not self.shots), skipped, limit and limit + skipped)
        name = f"gsm8k:shots={self.shots}" if self.shots else "gsm8k"
        stop = ("\nQuestion:",) if self.shots or not chat else ()
        return Task(name, tuple(asked), final_number, stop)

    def _problems(self, before: str, *, boxed: bool) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            question, answer = text_field(value, "question", where), text_field(value, "answer", where)
            reference = after_hashes(answer)
            if reference is None:
                raise ValueError(f"{where}: the answer must end in '#### ' and a number, but is {answer[-40:]!r}")
            prompt = question + IN_A_BOX if boxed else before + format_prompt(question)
            yield Problem(str(number), prompt, reference)


@dataclass(frozen=True)
class SpecBench:
    """Spec-Bench's prompts, grouped by its 13 categories: for speed and divergence, without a score.

    Objects with a ``question_id``, a ``category`` and ``turns``. A chat asks all turns, plain text only the first.

    Source: Xia et al., arXiv 2401.07851.
    """

    path: str

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        return Task("spec_bench", tuple(islice(self._problems(chat), limit)))

    def _problems(self, chat: bool) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            turns: Any = value.get("turns")
            if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
                raise ValueError(f"{where}: 'turns' must be a list of texts, but is {turns!r}")
            category, further = text_field(value, "category", where), tuple(turns[1:]) if chat else ()
            yield Problem(str(value.get("question_id", number)), turns[0], None, category, further)


ENDS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""What ends a function, as in lm-evaluation-harness."""
FENCE = "```"
HUMANEVAL_PROMPTS = (
    "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```\n",
    "Here is the completed function:\n```python\n{prompt}\n",
)
"""The message of a chat and how its answer begins: lm-evaluation-harness's task ``humaneval_instruct``."""


@dataclass(frozen=True)
class HumanEval:
    """HumanEval from its published JSON Lines, gzipped or not: an answer is right if it passes the problem's own tests.

    Objects with a ``task_id``, a ``prompt``, a ``test`` and an ``entry_point``. Plain text is asked and read like
    lm-evaluation-harness's ``humaneval``, a chat like its ``humaneval_instruct``. The programs that models write are
    run: see `run_program` for what they are kept from. What tests and functions exchange must be plain data.

    Source: Chen et al., arXiv 2107.03374.
    """

    path: str

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        programs = Programs(chat)
        problems = tuple(islice(self._problems(programs, chat), limit))
        stop = (*ENDS, "\n" + FENCE) if chat else ENDS
        return Task("humaneval", problems, stop=stop, judge=programs, runs_code=True)

    def _problems(self, programs: Programs, chat: bool) -> Iterator[Problem]:
        """Yield the problems; note in ``programs`` what each is judged by."""
        for _, where, value in read_objects(self.path):
            prompt, name = text_field(value, "prompt", where), text_field(value, "task_id", where)
            entry_point = text_field(value, "entry_point", where)
            check = f"{text_field(value, 'test', where)}\ncheck({entry_point})"
            programs.parts[name] = TestPart(prompt, check, entry_point, as_program(prompt, where))
            message, begun = (text.format(prompt=prompt) for text in HUMANEVAL_PROMPTS) if chat else (prompt, "")
            yield Problem(name, message, check, begun=begun)


def as_program(prompt: str, where: str) -> str:
    """Return a program of what a prompt defines, whose last function may have no body yet."""
    for program in (prompt, f"{prompt.rstrip()}\n    pass\n"):
        with suppress(SyntaxError, ValueError), catch_warnings(action="ignore"):
            compile(program, where, "exec")
            return program
    raise ValueError(f"{where}: 'prompt' must be Python that ends with the beginning of a function")


class TestPart(NamedTuple):
    prompt: str
    tests: str
    entry_point: str
    helpers: str  # what the prompt defines, for the tests


@dataclass(frozen=True)
class Programs:
    """Judges answers by running them; ``parts`` are those of each problem."""

    name: ClassVar[str] = "tests"
    chat: bool
    parts: dict[str, TestPart] = field(default_factory=dict)

    def code(self, problem: Problem, text: str) -> str:
        """Return the program to test; of a chat's answer only the text before the end of its code block is used."""
        return self.parts[problem.id].prompt + (text.partition(FENCE)[0] if self.chat else text)

    def __call__(self, problem: Problem, text: str) -> bool:
        _, tests, name, helpers = self.parts[problem.id]
        return run_program(self.code(problem, text), tests, name=name, helpers=helpers).passed


SCORES = ("strict", "loose")


@dataclass(frozen=True)
class IfEval:
    """IFEval from its published JSON Lines: an answer is right if it follows all of its prompt's instructions.

    Objects with a ``key``, a ``prompt``, an ``instruction_id_list`` and ``kwargs``. That is lm-evaluation-harness's
    ``prompt_level_strict_acc``, or with ``score=loose`` its ``prompt_level_loose_acc``. Groups are kinds of
    instructions, ``several`` where there is more than one.

    Source: Zhou et al., arXiv 2311.07911.
    """

    path: str
    score: str = "strict"

    def __post_init__(self) -> None:
        check_choice("score", self.score, SCORES)

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        checkers = Checkers(f"prompt_level_{self.score}_acc")
        return Task("ifeval", tuple(islice(self._problems(checkers), limit)), judge=checkers)

    def _problems(self, checkers: Checkers) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            prompt, kinds, given = (
                text_field(value, "prompt", where),
                value.get("instruction_id_list"),
                value.get("kwargs"),
            )
            if not isinstance(kinds, list) or not isinstance(given, list) or not 0 < len(kinds) == len(given):
                raise ValueError(f"{where}: 'instruction_id_list' and 'kwargs' must be lists of the same length")
            name = str(value.get("key", number))
            checkers.documents[name] = {"key": name, "prompt": prompt, "instruction_id_list": kinds, "kwargs": given}
            group = str(kinds[0]).partition(":")[0] if len(kinds) == 1 else "several"
            yield Problem(name, prompt, " ".join(map(str, kinds)), group)


@dataclass(frozen=True)
class Checkers:
    """Judges answers by a metric of the harness; ``documents`` are what it reads of each problem."""

    metric: str
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.metric

    def check(self) -> None:
        """Raise `ValueError` if the harness is not installed, or cannot judge a problem."""
        data = _data()
        for name, document in self.documents.items():
            if problem := problem_of(document, data):
                raise ValueError(f"problem {name}: {problem}")

    def __call__(self, problem: Problem, text: str) -> bool:
        return follows(self.documents[problem.id], text, self.metric, _data())


def _data() -> list[str]:
    """Return where NLTK's data is; raise `ValueError` where something lacks."""
    with needing("IFEval is checked by lm-evaluation-harness", "ifeval"):
        import immutabledict  # noqa: F401
        import langdetect  # noqa: F401
        import lm_eval  # noqa: F401
        import nltk
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:  # importing the checkers would download it
        raise ValueError("IFEval counts sentences by data of NLTK: run python -m nltk.downloader punkt_tab") from None
    return [str(each) for each in nltk.data.path]
