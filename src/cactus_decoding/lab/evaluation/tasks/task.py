"""What a task asks, and how answers are judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.engines.engine import Answer, Conversation, Engine, Problem, Prompt, prompt_text
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.tasks.reading import WITH_BOXES, check_math, definition_name, extractor_name


@dataclass(frozen=True, eq=False)
class Task:
    """Problems in order, and how their answers are read.

    ``extract`` turns an answer's text into what is compared with `Problem.answer`; None where nothing is scored.
    ``stop`` ends an answer. If ``judge`` is given, it decides whether an answer is right, and nothing is extracted; its
    ``name`` says how. ``runs_code`` says that it does so by running what a model wrote.
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

    @property
    def reading(self) -> dict[str, Any]:
        """Return how answers are read (``by``) and what ends them (``stop``): runs of the same task must share both."""
        return {"by": self._read_by, "stop": list(self.stop)}

    @property
    def _read_by(self) -> str:
        if self.judge is not None:
            return getattr(self.judge, "name", definition_name(self.judge))
        return "none" if self.extract is None else extractor_name(self.extract)

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
        if self.extract in WITH_BOXES:
            check_math()
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
