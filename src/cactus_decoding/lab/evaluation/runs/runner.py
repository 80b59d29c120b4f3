"""Answers runs and keeps each as soon as it is finished; scores stored answers anew."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from cactus_decoding.core.files.provenance import commit, with_engines
from cactus_decoding.core.request import Request
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine, Problem, Prompt
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.runs.alike import check_read_alike, model_files, timed_on
from cactus_decoding.lab.evaluation.runs.results import (
    AUDITED,
    COUNTS,
    AnswerEntry,
    Journal,
    ResultFile,
    RunResult,
    journal_of,
)
from cactus_decoding.lab.evaluation.runs.workers import Answered, AtOnce, Workers, check_parallelizable, longest_seconds
from cactus_decoding.lab.evaluation.tasks.task import Task

logger = logging.getLogger(__name__)


def pending(configs: Sequence[RunConfig], results: Sequence[RunResult]) -> list[RunConfig]:
    finished = {result.config for result in results}
    return [config for config in configs if config not in finished]


def check_same_problems(tasks: Mapping[str, Task], results: Sequence[RunResult], *, chat: bool = False) -> None:
    """Raise `ValueError` if a file holds answers to other problems, or read in another way, under a task's name.

    Prompts of a ``chat`` are only compared with prompts of a chat.
    """
    digests: dict[tuple[str, int], str] = {}
    for result in results:
        config = result.config
        if config.task not in tasks or (config.chat is not None) != chat:
            continue
        task, asked = tasks[config.task], (config.task, config.problems)
        if config.problems > len(task.problems):  # fewer are asked now: their texts are not there to be compared
            same = list(result.answers["id"][: len(task.problems)]) == [problem.id for problem in task.problems]
        else:
            if asked not in digests:
                digests[asked] = task.digest_of(config.problems)
            same = result.provenance.get("problems") == digests[asked]
        # a reference is read like an answer, so it may be all that differs
        if same or result.provenance.get("prompts") == task.digest_of(config.problems, prompts_only=True):
            check_read_alike(config.task, result.provenance, {"reading": task.reading})
        if not same:
            raise ValueError(
                f"the file holds answers to other problems under the name of task {config.task!r} "
                f"(rule {config.rule}); give another file"
            )


def answer_runs(
    configs: Sequence[RunConfig],
    tasks: Mapping[str, Task],
    load: Callable[[str], Engine],
    file: ResultFile,
    provenance: Mapping[str, Any],
    report: Callable[[str], None] = lambda remark: None,
    *,
    interleaved: bool = True,
    token_ids: bool = False,
    workers: int | None = None,
    threads: int = 1,
    concurrency: int | None = None,
    estimate: Callable[[float], None] | None = None,
) -> None:
    """Answer the runs that a file lacks, and add each to it when it is finished.

    Everything that can be checked is checked before the first answer: requests, problems, prompts, models. ``load`` is
    called once for each draft that has something to do, and the runs of a draft must be adjacent. Provenance gets
    versions of the engines, the date, a hash of the problems, how answers are read, and the workers. Interleaved, the
    runs of a task, draft and seed are answered side by side, so that their wall times can be compared. With
    ``token_ids`` each answer's tokens are kept beside its text. ``workers`` processes of ``threads`` each answer
    problems in parallel; ``load`` must pickle for them. With ``concurrency`` so many threads ask one engine, a server.
    ``estimate`` is called with the most seconds that all runs should take.
    """
    check_same_problems(tasks, file.results, chat=any(config.chat is not None for config in configs))
    todo = pending(configs, file.results)
    engines: dict[str, Engine] = {}
    for draft in dict.fromkeys(config.draft for config in todo):
        engines[draft] = load(draft)
    provenance = with_engines(provenance)
    if concurrency is None:
        provenance["running"] = {**provenance.get("running", {}), **_running(workers, threads)}
    names = {config: journal_name(config, tasks, provenance) for config in todo}
    checked = set()
    for config in todo:
        engines[config.draft].check(config.request)
        prompts = config.task, config.draft, config.num_speculative_tokens
        if prompts not in checked:
            checked.add(prompts)
            tasks[config.task].check(engines[config.draft], config)
    longest = longest_seconds(todo, engines, tasks) if estimate is not None and concurrency is None else None
    if longest is not None and estimate is not None:
        estimate(longest / (workers or 1))
    pool: Workers | None = None
    at_once: AtOnce | None = None
    if concurrency is not None:
        at_once = AtOnce(concurrency, engines, tasks)
    elif workers is not None and todo:
        check_parallelizable(todo, tasks)
        pool = Workers(workers, threads, load, todo, tasks)
        engines.clear()  # theirs are the ones that answer
    journal = Journal(journal_of(file.path))
    if todo and (left := journal.num_others(names.values())):
        logger.info(
            "%d answers of interrupted runs are not used: they are of other runs, or another version, machine, number "
            "of threads or workers, task or model files",
            left,
        )
    try:
        for draft, groups in groupby(_groups(todo, interleaved), key=lambda group: group[0].draft):
            for group in groups:
                _answer(group, tasks, at_once or pool or engines, file, provenance, journal, names, report, token_ids)
            if pool is None:
                engines[draft].close()  # memory may not hold two engines
        if at_once is not None:
            at_once.check()
    finally:
        for each in (pool, at_once):
            if each is not None:
                each.close()
        for engine in engines.values():
            engine.close()
        unfinished = pending(todo, file.results)
        journal.finish(names[config] for config in todo if config not in unfinished)


def _groups(configs: Sequence[RunConfig], interleaved: bool) -> list[list[RunConfig]]:
    """Return the runs that are answered side by side: those of one task, draft and seed."""
    if not interleaved:
        return [[config] for config in configs]
    return [list(group) for _, group in groupby(configs, key=_side_by_side)]


def _side_by_side(config: RunConfig) -> tuple[object, ...]:
    """Return what runs answered side by side have in common; for vLLM the length too, because a start takes minutes."""
    length = config.num_speculative_tokens if config.engine == "vllm" else None
    return config.draft, config.task, config.seed, length


def _running(workers: int | None, threads: int) -> dict[str, int | None]:
    return {"workers": workers} | ({} if workers is None else {"threads": threads})


def journal_name(config: RunConfig, tasks: Mapping[str, Task], provenance: Mapping[str, Any]) -> str:
    """Return the journal's key of a run's answers.

    It changes with the problems and how answers are read, with the code and versions, with what times depend on, and
    with the files of local models.
    """
    task = tasks[config.task]
    circumstances = {
        "reading": task.reading,
        "versions": provenance.get("versions"),
        "timed_on": timed_on(provenance),
        "models": [model_files(name) for name in (config.target, config.draft)],
    }
    digest = hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()[:16]
    return f"{provenance.get('commit')} {task.digest_of(config.problems)} {digest} {config.key}"


def _answer(
    configs: Sequence[RunConfig],
    tasks: Mapping[str, Task],
    engines: Mapping[str, Engine] | Workers | AtOnce,
    file: ResultFile,
    provenance: Mapping[str, Any],
    journal: Journal,
    names: Mapping[RunConfig, str],
    report: Callable[[str], None],
    token_ids: bool,
) -> None:
    """Answer runs side by side, one problem of each in turn, so that whatever slows the machine slows them all."""
    entries = {config: _kept(tasks[config.task], journal.entries(names[config])) for config in configs}
    missing = {
        config: [place for place in range(config.problems) if place not in entries[config]] for config in configs
    }

    unwritten = deque(configs)

    def write_finished() -> None:
        """Write runs in their order, whichever is finished first."""
        while unwritten and len(entries[unwritten[0]]) == unwritten[0].problems:
            config = unwritten.popleft()
            file.append(_result(config, tasks[config.task], entries[config], provenance))

    for config in configs:
        for _ in entries[config]:
            report(config.label)
    write_finished()
    answers = _in_turn(missing, tasks, engines) if isinstance(engines, Mapping) else engines.answers(missing)
    for config, place, problem, answer, right in answers:
        entry = entries[config][place] = entry_of(problem, answer, right, token_ids)
        journal.add(names[config], entry)
        report(config.label)
        write_finished()


def _kept(task: Task, entries: Sequence[AnswerEntry]) -> dict[int, AnswerEntry]:
    """Return the entries of a journal by the places of their problems."""
    places = {problem.id: place for place, problem in enumerate(task.problems)}
    return {places[entry["id"]]: entry for entry in entries}


def _in_turn(
    missing: Mapping[RunConfig, Sequence[int]], tasks: Mapping[str, Task], engines: Mapping[str, Engine]
) -> Iterator[Answered]:
    """Yield answers in this process; runs with fewer answers catch up: an earlier command may have been killed."""
    starts = {config: places[0] for config, places in missing.items() if places}
    answers = {
        config: tasks[config.task].answer(engines[config.draft], config, start) for config, start in starts.items()
    }
    for place in range(max((config.problems for config in starts), default=0)):
        for config, start in starts.items():
            if start <= place < config.problems:
                yield config, place, *next(answers[config])


def _result(
    config: RunConfig, task: Task, entries: Mapping[int, AnswerEntry], provenance: Mapping[str, Any]
) -> RunResult:
    ordered = [entries[place] for place in range(config.problems)]
    names = dict.fromkeys(name for entry in ordered for name in entry)  # not every problem has several turns
    columns = {name: [entry.get(name) for entry in ordered] for name in names}
    result = RunResult(config, columns, {**provenance, **problem_provenance(task, config)})
    if task.asks_as_a_whole and all(right is None for right in columns["right"]):
        return RunResult(config, columns | {"right": _judged(task, result)}, result.provenance)
    return result


def problem_provenance(task: Task, config: RunConfig) -> dict[str, Any]:
    """Return the provenance of a run's problems, how answers are read, and the date."""
    return {
        "reading": task.reading,
        "problems": task.digest_of(config.problems),
        "prompts": task.digest_of(config.problems, prompts_only=True),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def entry_of(problem: Problem, answer: Answer, right: bool | None, token_ids: bool = False) -> AnswerEntry:
    entry: AnswerEntry = {
        "id": problem.id, "group": problem.group, "right": right, "finish_reason": answer.finish_reason,
        "text": answer.text,
    }  # fmt: skip
    if token_ids:
        entry["token_ids"] = list(answer.token_ids)
    entry |= {name: getattr(answer.metrics, name) for name in (*COUNTS, "seconds")}
    entry |= dict.fromkeys(answer.unknown)
    if answer.first_seconds is not None:
        entry |= {"first_seconds": answer.first_seconds, "retries": answer.retries}
    if answer.turns:
        entry["turns"] = list(answer.turns)
    if answer.audited is not None:
        entry |= {name: getattr(answer.audited, name) for name in AUDITED}
    return entry


class StoredAnswers(Engine):
    """An engine that gives the answers of a finished run, each to the request that has its seed."""

    def __init__(self, result: RunResult) -> None:
        texts, reasons = result.answers["text"], result.answers["finish_reason"]
        self._answers = {
            seed_of(result.config.seed, place): Answer(text, reason)
            for place, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        }

    def answer(self, prompt: Prompt, request: Request) -> Answer:
        """Return the stored answer, which includes those of further turns."""
        assert request.seed is not None  # a run's requests have one
        return self._answers.get(request.seed, Answer("", "stop"))


def _judged(task: Task, result: RunResult) -> list[bool | None]:
    return [right for _, _, right in task.answer(StoredAnswers(result), result.config)]


def rescored(results: Sequence[RunResult], tasks: Mapping[str, Task], source: str) -> Iterator[RunResult]:
    """Yield the runs with their texts scored by the tasks; everything else is as it was.

    The tasks are by the names that the runs have; the provenance then names ``source``, the file.
    """
    for result in results:
        config, named = result.config, f"{source}: the run of {result.config.rule}"
        if config.task not in tasks:
            raise ValueError(f"{named} is of task {config.task!r}: give it as --task or --lm-eval")
        if any(text is None for text in result.answers.get("text", [None])):
            raise ValueError(f"{named} holds no texts: its answers cannot be scored anew")
        task = tasks[config.task]
        said = problem_provenance(task, config)
        if len(task.problems) < config.problems or result.provenance.get("prompts") != said["prompts"]:
            raise ValueError(f"{named} answers other problems than task {config.task!r} asks")
        right = _judged(task, result)
        rescoring = {"from": source, "commit": commit(), "date": said["date"]}
        reading = {**(result.provenance.get("reading") or {}), "by": said["reading"]["by"]}
        provenance = {
            **result.provenance, "problems": said["problems"], "reading": reading, "rescored": rescoring,
        }  # fmt: skip
        yield RunResult(config, {**result.answers, "right": right}, provenance)
