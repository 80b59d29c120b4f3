"""Answers problems in several processes, each with its own engines; the answers are the same as from one process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace

from cactus_decoding.core.drafting.trees.adaptive_tree import AdaptiveTree
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine, Problem
from cactus_decoding.lab.evaluation.run_config import RunConfig
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
        if isinstance(config.request.tree, AdaptiveTree):
            raise ValueError(
                f"--workers answers problems apart, but the tree {str(config.request.tree)!r} learns from each answer "
                "for the next: give a fixed one"
            )


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
        """Yield answers to the problems at some places, in order; one process answers a problem under every run."""
        asked: dict[int, Future[dict[int, Answer]]] = {}
        for place in sorted({place for places in missing.values() for place in places}):
            runs = [self._places[config] for config, places in missing.items() if place in places]
            asked[place] = self._pool.submit(_answer, runs, place)
        for place, answers in asked.items():
            for config, places in missing.items():
                if place in places:
                    task = self._tasks[config.task]
                    answer, problem = answers.result()[self._places[config]], task.problems[place]
                    yield config, place, problem, answer, task.is_right(problem, answer.text)


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

    A few tokens of the first problem are timed under the first run of each draft. None where that would change what is
    measured, or take long itself.
    """
    seconds = 0.0
    for draft in dict.fromkeys(config.draft for config in configs):
        runs = [config for config in configs if config.draft == draft]
        first = runs[0]
        if first.engine == "vllm" or isinstance(first.request.tree, AdaptiveTree):
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
