"""Answers cells one after another, and keeps each as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from cactus_decoding.evaluation.cells import Cell
from cactus_decoding.evaluation.engines import Answer, Engine
from cactus_decoding.evaluation.results import AUDITED, COLUMNS, COUNTS, CellResult, ResultFile
from cactus_decoding.evaluation.tasks import Problem, Task

Report = Callable[[int, str], None]
"""Called with how many answers are given, and which cell they belong to."""


class LoadEngine(Protocol):
    """Loads what answers with a draft."""

    def __call__(self, draft: str) -> Engine:
        """Return an engine with its models loaded."""
        ...


def pending(cells: Sequence[Cell], results: Sequence[CellResult]) -> list[Cell]:
    """Return the cells that have no result yet, in order."""
    finished = {result.cell.key for result in results}
    return [cell for cell in cells if cell.key not in finished]


def check_same_problems(tasks: Mapping[str, Task], results: Sequence[CellResult]) -> None:
    """Raise `ValueError` where a file holds answers to other problems under the name of one of the tasks."""
    digests: dict[tuple[str, int], str] = {}
    for cell, digest in ((result.cell, result.provenance.get("problems")) for result in results):
        if cell.task not in tasks:
            continue
        asked = cell.task, cell.problems
        if asked not in digests:
            digests[asked] = tasks[cell.task].digest_of(cell.problems)
        if digest != digests[asked]:
            raise ValueError(
                f"the file holds answers to other problems under the name of task {cell.task!r} (rule {cell.rule}); "
                "give another file"
            )


def run(
    cells: Sequence[Cell],
    tasks: Mapping[str, Task],
    load: LoadEngine,
    file: ResultFile,
    provenance: Mapping[str, Any],
    report: Report = lambda done, remark: None,
) -> None:
    """Answer the cells that a file lacks, and add each to it when it is finished.

    Everything that can be checked is checked before the first answer: settings, problems, prompts, models.

    Args:
        cells: what to answer; those of one draft stand together.
        tasks: by name.
        load: loads models, once for each draft that has something to do.
        file: where results go.
        provenance: of the run; the date and a hash of the problems are added to it.
        report: called after each answer.

    Raises:
        ValueError: for settings that do not go together, or a prompt that does not fit.
    """
    check_same_problems(tasks, file.results)
    todo = pending(cells, file.results)
    engines: dict[str, Engine] = {}
    for draft in dict.fromkeys(cell.draft for cell in todo):
        engines[draft] = load(draft)
    checked = set()
    for cell in todo:
        engines[cell.draft].check(cell)
        prompts = cell.task, cell.draft, cell.num_speculative_tokens
        if prompts not in checked:
            checked.add(prompts)
            tasks[cell.task].check(engines[cell.draft], cell)
    done = 0
    for cell in todo:
        columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, *AUDITED)}
        for problem, answer, right in tasks[cell.task].answer(engines[cell.draft], cell):
            _add(columns, problem, answer, right)
            done += 1
            report(done, label(cell))
        if not columns["nats"]:
            columns = {name: columns[name] for name in COLUMNS}
        digest = tasks[cell.task].digest_of(cell.problems)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        file.append(CellResult(cell, columns, {**provenance, "problems": digest, "date": date}))


def label(cell: Cell) -> str:
    """Return a cell's rule and draft length, for people."""
    budget = "" if cell.budget_nats is None else f" ≤{cell.budget_nats:g} nats"
    block = " block" if cell.verification == "block" else ""
    return f"{cell.rule}{budget}{block} ×{cell.num_speculative_tokens}"


def _add(columns: dict[str, list[Any]], problem: Problem, answer: Answer, right: bool | None) -> None:
    row = {"id": problem.id, "group": problem.group, "right": right, "finish_reason": answer.finish_reason}
    row |= {name: getattr(answer.metrics, name) for name in COUNTS}
    row["seconds"] = answer.metrics.seconds
    if answer.audited is not None:
        row |= {name: getattr(answer.audited, name) for name in AUDITED}
    for name, value in row.items():
        columns[name].append(value)
