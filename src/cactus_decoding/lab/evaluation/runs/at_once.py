"""Asks a server many questions at a time; answers come in the order in which they are finished."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue

from cactus_decoding.core.request import Request
from cactus_decoding.engines.openai.client import RefusedError
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine, Prompt
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.runs.workers import Answered
from cactus_decoding.lab.evaluation.tasks.task import Task, ask

MAX_REFUSED = 10
"""After so many refused questions the others are not asked."""

_Question = tuple[RunConfig, int]


class AtOnce:
    """Keeps a number of requests under way.

    A question that the server refuses is left out, and `check` says so at the end: the others are answered.
    """

    def __init__(self, count: int, engines: Mapping[str, Engine], tasks: Mapping[str, Task]) -> None:
        self._count, self._engines, self._tasks = count, engines, tasks
        self._stopped = threading.Event()
        self._refused: list[str] = []

    def close(self) -> None:
        """Begin no other question; threads end by themselves, and with the process at the latest."""
        self._stopped.set()

    def check(self) -> None:
        """Raise `ValueError` if questions were refused."""
        if self._refused:
            count = f"{len(self._refused)} questions, the first of which is " if len(self._refused) > 1 else ""
            raise ValueError(
                f"the server refused {count}{self._refused[0]}; the other answers are kept, and the same command asks "
                "again for what is missing"
            )

    def answers(self, missing: Mapping[RunConfig, Sequence[int]]) -> Iterator[Answered]:
        """Yield answers to the problems at some places, as they come; problem after problem is asked under every run.

        The tasks that are asked as a whole get no verdict here.

        Raises:
            ServerError: as soon as the server does not answer a question.
            ValueError: as soon as it has refused `MAX_REFUSED`.
        """
        questions: SimpleQueue[_Question] = SimpleQueue()
        found: SimpleQueue[tuple[_Question, Answer | Exception]] = SimpleQueue()
        ordered = sorted((place, number) for number, places in enumerate(missing.values()) for place in places)
        for place, number in ordered:
            questions.put(([*missing][number], place))
        recorded = {config: _recorded(self._tasks[config.task], config) for config in missing}

        def work() -> None:
            while not self._stopped.is_set():
                try:
                    config, place = question = questions.get_nowait()
                except Empty:
                    return
                engine, task = self._engines[config.draft], self._tasks[config.task]
                try:
                    if recorded[config]:
                        answer = engine.answer(*recorded[config][seed_of(config.seed, place)])
                    else:
                        answer = ask(engine, task.problems[place], config, place, task.stop)
                    found.put((question, answer))
                except Exception as error:
                    found.put((question, error))

        for _ in range(min(self._count, len(ordered))):
            threading.Thread(target=work, daemon=True).start()
        for _ in ordered:
            (config, place), answer = found.get()
            task = self._tasks[config.task]
            problem = task.problems[place]
            if isinstance(answer, RefusedError):
                self._refused.append(f"task {config.task}, problem {problem.id!r}: {answer}")
                if len(self._refused) == MAX_REFUSED:
                    self.check()
            elif isinstance(answer, Exception):
                raise answer
            else:
                right = None if recorded[config] else task.is_right(problem, answer.text)
                yield config, place, problem, answer, right


class _Recorder(Engine):
    """Answers nothing, and keeps what it is asked, by seeds."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[Prompt, Request]] = {}

    def check(self, request: Request) -> None:
        pass

    def check_prompt(self, prompt: Prompt, request: Request) -> None:
        pass

    def answer(self, prompt: Prompt, request: Request) -> Answer:
        self.asked[request.seed or 0] = prompt, request
        return Answer("", "stop")


def _recorded(task: Task, config: RunConfig) -> dict[int, tuple[Prompt, Request]]:
    """Return what a task that is asked as a whole asks, by seeds; nothing for other tasks."""
    recorder = _Recorder()
    if task.asks_as_a_whole:
        for _ in task.answer(recorder, config):
            pass
    return recorder.asked
