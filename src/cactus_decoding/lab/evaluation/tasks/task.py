"""What a task asks, how an answer is found in a text, and how it is judged."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from cactus_decoding.core.checks import suggestion
from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.engines.engine import Answer, Conversation, Engine, Problem, Prompt, prompt_text
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.tasks.judging import last_match

Extractor = Callable[[str], str | None]

_NUMBER = re.compile(r"-?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_HASHES = re.compile(r"####\s*\$?(-?[\d,]*\.?\d+)")
_LETTER = re.compile(r"\b([A-J])\b")
_BOXED_NUMBER = re.compile(rf"\\boxed\{{[^{{}}\d]*?({_NUMBER.pattern})")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_WRITTEN_OUT = 4_000  # digits of an integer: models also write 1e9999999


def canonical_number(text: str) -> str | None:
    """Return a number in its canonical spelling, ``1250.5`` for ``1,250.50``, or None if the text is no number.

    An integer of very many digits is spelled with an exponent, so that it takes no longer than the text.
    """
    try:
        value = Decimal(text.replace(",", "").strip())
    except InvalidOperation:
        return None
    if not value.is_finite():
        return None
    whole = value == value.to_integral_value() and value.adjusted() < _WRITTEN_OUT
    return f"{value.to_integral_value() or Decimal(0):f}" if whole else str(value.normalize(_EXACT))


def after_hashes(text: str) -> str | None:
    """Return the number after the first ``####``."""
    found = _HASHES.search(text)
    return canonical_number(found.group(1)) if found else None


def last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return canonical_number(found[-1]) if found else None


def letter(text: str) -> str | None:
    """Return the last capital from A to J that stands alone: the answer to a multiple choice."""
    found = _LETTER.findall(text)
    return found[-1] if found else None


def final_number(text: str) -> str | None:
    r"""Return the number in the last ``\boxed{...}``, else the one after the first ``####``, else the last one."""
    found = _BOXED_NUMBER.findall(text)
    return canonical_number(found[-1]) if found else after_hashes(text) or last_number(text)


def boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` holds, a number in its canonical spelling."""
    found = _BOXED.findall(text)
    return (canonical_number(found[-1]) or found[-1].strip() or None) if found else None


def exact(text: str) -> str | None:
    """Return the whole text without space at its ends."""
    return text.strip() or None


def first_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else None


EXTRACTORS = MappingProxyType(
    {
        "hashes": after_hashes,
        "last_number": last_number,
        "letter": letter,
        "boxed": boxed,
        "final_number": final_number,
        "exact": exact,
        "first_line": first_line,
    }
)
"""Extractors by name; ``regex`` is another, with a pattern."""


def extractor(name: str, pattern: str = "") -> Extractor:
    if name != "regex":
        if name not in EXTRACTORS:
            known = (*EXTRACTORS, "regex", "none")
            raise ValueError(f"extract must be one of {', '.join(known)}, but is {name!r}{suggestion(name, known)}")
        if pattern:
            raise ValueError(f"a pattern goes with extract=regex only, but extract is {name!r}")
        return EXTRACTORS[name]
    if not pattern:
        raise ValueError("extract=regex needs a pattern, as in extract=regex,pattern=is ([0-9]+)")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from None
    return partial(last_match, pattern)


@dataclass(frozen=True, eq=False)
class Task:
    """Problems in order, and how their answers are read.

    ``extract`` turns an answer's text into what is compared with `Problem.answer`; None where nothing is scored.
    ``stop`` ends an answer. If ``judge`` is given, it decides whether an answer is right, and nothing is extracted;
    ``runs_code`` says that it does so by running what a model wrote.
    """

    name: str
    problems: tuple[Problem, ...]
    extract: Callable[[str], str | None] | None = None
    stop: tuple[str, ...] = ()
    judge: Callable[[Problem, str], bool] | None = None
    runs_code: bool = False

    def digest_of(self, problems: int, *, prompts_only: bool = False) -> str:
        """Return a hash of the first problems, or of their prompts: runs of the same task must have the same."""
        given = [problem.as_dict() for problem in self.problems[:problems]]
        if prompts_only:
            given = [{"id": each["id"], "prompt": each["prompt"]} for each in given]
        text = json.dumps(given, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_right(self, problem: Problem, text: str) -> bool | None:
        """Whether an answer is right; None where nothing is scored."""
        if self.judge is not None:
            return self.judge(problem, text)
        if self.extract is None or problem.answer is None:
            return None
        return self.extract(text) == problem.answer

    @property
    def asks_as_a_whole(self) -> bool:
        """Whether all answers are asked for at once, and judged together."""
        return type(self).answer is not Task.answer

    def check(self, engine: Engine, config: RunConfig) -> None:
        """Raise `ValueError` if a problem cannot be answered or judged, before any is answered."""
        getattr(self.judge, "check", lambda: None)()
        for problem in self.problems[: config.problems]:
            try:
                engine.check_prompt(prompt_of(problem, config.chat), config.request)
            except ValueError as error:
                raise ValueError(f"task {self.name}, problem {problem.id!r}: {error}") from None

    def answer(
        self, engine: Engine, config: RunConfig, start: int = 0
    ) -> Iterator[tuple[Problem, Answer, bool | None]]:
        """Yield each problem from the place ``start`` on, its answer, and whether that is right."""
        for place, problem in islice(enumerate(self.problems[: config.problems]), start, None):
            answer = ask(engine, problem, config, place, self.stop)
            yield problem, answer, self.is_right(problem, answer.text)


def prompt_of(problem: Problem, chat: Chat | None) -> Prompt:
    """Return what an engine is asked in a problem's first turn."""
    return problem.prompt if chat is None else Conversation((problem.prompt,), chat.system, problem.begun)


def task_in_chat(task: Task, tokenizer: Any, chat: Chat | None) -> Task:
    r"""Return a task with the chat template applied to its prompts; follow-up turns are dropped."""
    if chat is None:
        return task
    asked = (prompt_text(prompt_of(problem, chat), tokenizer) for problem in task.problems)
    problems = (
        replace(problem, prompt=prompt, follow_ups=()) for problem, prompt in zip(task.problems, asked, strict=True)
    )
    return replace(task, problems=tuple(problems))


def ask(engine: Engine, problem: Problem, config: RunConfig, place: int, stop: tuple[str, ...]) -> Answer:
    """Return the answer to a problem; in a chat each further turn sees all turns before it, and has its own seed."""
    request = config.request_at(place, stop)
    answer = engine.answer(prompt_of(problem, config.chat), request)
    if config.chat is None:
        return answer
    messages: tuple[str, ...] = (problem.prompt, problem.begun + answer.text)
    for turn, message in enumerate(problem.follow_ups, 1):
        asked = Conversation((*messages, message), config.chat.system)
        reply = engine.answer(asked, request.replace(seed=seed_of(request.seed or 0, turn)))
        messages += (message, reply.text)
        answer += reply
    return answer
