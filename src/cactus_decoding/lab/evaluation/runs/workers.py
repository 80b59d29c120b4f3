"""Answers problems at once: in processes, each with its own engines, or by threads that ask a server."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue

from cactus_decoding.core.request import Request
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine, Problem, Prompt
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.tasks.task import Task, ask, prompt_of

Answered = tuple[RunConfig, int, Problem, Answer, bool | None]
"""A run, the place of a problem, the problem, its answer, and whether that is right."""


def check_parallelizable(configs: Sequence[RunConfig], tasks: Mapping[str, Task]) -> None:
    """Raise `ValueError` for runs whose problems cannot be answered in different processes."""
    for config in configs:
        if config.engine == "vllm":
            raise ValueError("--workers is for the package's own loop: vLLM starts processes itself")
        if tasks[config.task].asks_as_a_whole:
            raise ValueError(f"--workers answers problems apart, but {config.task} is asked as a whole: leave it out")


class Workers:
    """Processes that load engines when they first need them."""

    def __init__(
        self,
        count: int,
        threads: int,
        load: Callable[[str], Engine],
        configs: Sequence[RunConfig],
        tasks: Mapping[str, Task],
    ) -> None:
        """Start processes with that many threads each; ``load`` must pickle, and judges stay here."""
        self._before = multiprocessing.active_children()
        self._tasks, self._places = tasks, {config: place for place, config in enumerate(configs)}
        asked = {name: replace(task, extract=None, judge=None) for name, task in tasks.items()}
        self._pool = ProcessPoolExecutor(
            count,
            multiprocessing.get_context("spawn"),  # threads of torch do not survive a fork
            _begin,
            (threads, load, list(configs), asked),
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in self._before:
                process.terminate()
                process.join()

    def answers(self, missing: Mapping[RunConfig, Sequence[int]]) -> Iterator[Answered]:
        """Yield answers to the problems at some places, in order; one process answers a problem under every run.

        Raises `ValueError` if a process ends before it has answered.
        """
        asked: dict[int, Future[dict[int, Answer]]] = {}
        for place in sorted({place for places in missing.values() for place in places}):
            runs = [self._places[config] for config, places in missing.items() if place in places]
            with _ended_workers_named():
                asked[place] = self._pool.submit(_answer, runs, place)
        for place, future in asked.items():
            with _ended_workers_named():
                answers = future.result()
            for config, places in missing.items():
                if place in places:
                    task = self._tasks[config.task]
                    answer, problem = answers[self._places[config]], task.problems[place]
                    yield config, place, problem, answer, task.is_right(problem, answer.text)


@contextmanager
def _ended_workers_named() -> Iterator[None]:
    """Raise `ValueError` where a process of the pool was killed or ended by itself."""
    try:
        yield
    except BrokenProcessPool:
        raise ValueError(
            "a worker ended before it had answered; the machine may have run out of memory, as each worker loads "
            "models of its own: give fewer --workers; the answers so far are kept, and the same command goes on"
        ) from None


_load: Callable[[str], Engine]
_configs: list[RunConfig]
_tasks: dict[str, Task]
_engines: dict[str, Engine] = {}


def _begin(threads: int, load: Callable[[str], Engine], configs: list[RunConfig], tasks: dict[str, Task]) -> None:
    global _load, _configs, _tasks
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others
    torch.set_num_threads(threads)
    _load, _configs, _tasks = load, configs, tasks


def _answer(runs: list[int], place: int) -> dict[int, Answer]:
    return {run: _answer_one(_configs[run], place) for run in runs}


def _answer_one(config: RunConfig, place: int) -> Answer:
    if config.draft not in _engines:
        for engine in _engines.values():
            engine.close()
        _engines.clear()
        engine = _engines[config.draft] = _load(config.draft)
        for each in _configs:  # all that prompts share is read alike, wherever one of them is answered
            if each.draft == config.draft:
                engine.check(each.request)
                _tasks[each.task].check(engine, each)
    task = _tasks[config.task]
    return ask(_engines[config.draft], task.problems[place], config, place, task.stop)


_TOKENS = 8
"""How many tokens of an answer are timed, after its first."""


def longest_seconds(
    configs: Sequence[RunConfig], engines: Mapping[str, Engine], tasks: Mapping[str, Task]
) -> float | None:
    """Return about how long the runs take if every answer has all of its tokens.

    A few tokens of the first problem are timed under the first run of each draft. None where that would take
    long itself.
    """
    seconds = 0.0
    for draft in dict.fromkeys(config.draft for config in configs):
        runs = [config for config in configs if config.draft == draft]
        first = runs[0]
        if first.engine == "vllm":
            return None
        prompt = prompt_of(tasks[first.task].problems[0], first.chat)
        begun, more = (
            engines[draft].answer(prompt, first.request_at(0).replace(max_new_tokens=tokens)).metrics
            for tokens in (1, 1 + _TOKENS)
        )
        per_token = max(more.seconds - begun.seconds, 0.0) / max(more.generated - begun.generated, 1)
        for run in runs:
            turns = sum(1 + len(problem.follow_ups) for problem in tasks[run.task].problems[: run.problems])
            seconds += turns * (begun.seconds + per_token * run.request.max_new_tokens)
    return seconds


MAX_REFUSED = 10
"""After so many refused questions the others are not asked."""

_Question = tuple[RunConfig, int]


def in_turns(missing: Mapping[RunConfig, Sequence[int]]) -> list[_Question]:
    """Return every question, problem after problem; the run that is asked first is another one for each problem."""
    runs = [*missing]
    numbered = [(place, number) for number, places in enumerate(missing.values()) for place in places]
    numbered.sort(key=lambda each: (each[0], (each[1] - each[0]) % len(runs)))
    return [(runs[number], place) for place, number in numbered]


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

        Runs take turns being first, because a server that keeps prompts reads one for the first question only. The
        tasks that are asked as a whole get no verdict here.

        Raises:
            ServerError: as soon as the server does not answer a question.
            ValueError: as soon as it has refused `MAX_REFUSED`.
        """
        from cactus_decoding.engines.openai.client import RefusedError  # needs an extra, as only servers do

        questions: SimpleQueue[_Question] = SimpleQueue()
        found: SimpleQueue[tuple[_Question, Answer | Exception]] = SimpleQueue()
        ordered = in_turns(missing)
        for question in ordered:
            questions.put(question)
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
