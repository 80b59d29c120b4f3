"""What `cactus eval` reads and shows: tasks, stored answers scored anew, tables of a result file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

if TYPE_CHECKING:
    from cactus_decoding.lab.evaluation.run_config import RunConfig
    from cactus_decoding.lab.evaluation.runs.results import RunResult
    from cactus_decoding.lab.evaluation.tasks.task import Task

Value = TypeVar("Value")


def unique(values: Iterable[Value]) -> list[Value]:
    """Return values in order, each once."""
    return list(dict.fromkeys(values))


def parse_tasks(
    spelled: list[str] | None,
    lm_eval: str | None,
    lm_eval_path: Path | None,
    problems: int | None,
    *,
    chat: bool = False,
) -> dict[str, Task]:
    """Return tasks by their names, as they are spelled."""
    from cactus_decoding.lab.evaluation.tasks.sources import parse_task

    made = [parse_task(text, problems, chat=chat) for text in unique(spelled or ([] if lm_eval else ["word_problems"]))]
    if lm_eval is not None:
        from cactus_decoding.lab.evaluation.tasks.harness import harness_tasks

        made += harness_tasks(lm_eval, lm_eval_path, problems)
    tasks = {each.name: each for each in made}
    if len(tasks) < len(made):
        twice = next(each.name for each in made if tasks[each.name] is not each)
        raise ValueError(f"two tasks are named {twice!r}; name one of them, as in 'jsonl:path=FILE,name=other'")
    return tasks


def check_may_run(tasks: Iterable[Task], allowed: bool) -> None:
    """Raise `ValueError` where models' programs would be run and nobody allowed it; say what they are not kept from."""
    running = [task.name for task in tasks if task.runs_code]
    if not running:
        return
    if not allowed:
        raise ValueError(
            f"{running[0]} runs programs that a model wrote: read in docs/evaluation.md what they are kept from, and "
            "give --allow-code-execution"
        )
    from cactus_decoding.cli.notes import say
    from cactus_decoding.lab.evaluation.sandbox.sandbox import missing_isolation

    if missing := missing_isolation():
        say(f"this system permits no namespaces for: {missing}; programs are kept from these by Python alone")


def rescored_file(
    source: Path,
    out: Path,
    task: list[str] | None,
    lm_eval: str | None,
    lm_eval_path: Path | None,
    every_metric: bool,
    allow_code_execution: bool = False,
) -> None:
    """Write a result file with the texts of another one scored anew."""
    from cactus_decoding.core.files.writing import check_writable
    from cactus_decoding.lab.evaluation.runs.results import opened, read_results
    from cactus_decoding.lab.evaluation.runs.runner import rescored
    from cactus_decoding.lab.evaluation.tasks.sources import file_of, parse_task

    check_writable(out, inputs=[source, *map(file_of, task or [])])
    results = read_results(source)
    scored: list[RunResult] = []
    for chat in (False, True):
        asked = [result for result in results if (result.config.chat is not None) == chat]
        tasks = parse_tasks(task, lm_eval, lm_eval_path, None, chat=chat) if asked and (task or lm_eval) else {}
        check_may_run(tasks.values(), allow_code_execution)
        for config in (result.config for result in asked):  # those that need no file
            if config.task.partition(":")[0] == "word_problems":
                known = tasks.get(config.task)
                if known is None or len(known.problems) < config.problems:
                    tasks[config.task] = parse_task(config.task, config.problems, chat=chat)
        scored += rescored(asked, tasks, str(source))
    with opened(out) as file:
        held = {result.config for result in file.results}
        if any(result.config in held for result in scored):
            raise ValueError(f"{out} holds results of the same runs already: give --output another file")
        for result in scored:
            file.append(result)
    show_results(scored, [result.config for result in scored], every_metric)


def show_results(results: list[RunResult], configs: list[RunConfig], every_metric: bool) -> None:
    """Print what came out of some runs; baselines are looked for in the whole file."""
    from cactus_decoding.cli.evaluation_table import table
    from cactus_decoding.lab.evaluation.runs.summary import summarise

    wanted = {config.asking(seed=0) for config in configs}
    shown = [summary for summary in summarise(results) if summary.config in wanted]
    Console(highlight=False).print(*table(shown, every_metric=every_metric), sep="\n\n")
