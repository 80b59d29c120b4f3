"""Answers cells one after another, and keeps each as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Protocol

from cactus_decoding.evaluation.engines.engine import Answer, Engine, Problem
from cactus_decoding.evaluation.run_config import Cell
from cactus_decoding.evaluation.runs.journal import Journal, Row, journal_of
from cactus_decoding.evaluation.runs.results import AUDITED, COUNTS, CellResult, ResultFile
from cactus_decoding.evaluation.tasks.task import Task


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
    for result in results:
        cell = result.cell
        if cell.task not in tasks:
            continue
        task, asked = tasks[cell.task], (cell.task, cell.problems)
        if cell.problems > len(task.problems):  # fewer are asked now: their texts are not there to be compared
            same = list(result.answers["id"][: len(task.problems)]) == [problem.id for problem in task.problems]
        else:
            if asked not in digests:
                digests[asked] = task.digest_of(cell.problems)
            same = result.provenance.get("problems") == digests[asked]
        if not same:
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
    report: Callable[[str], None] = lambda remark: None,
    *,
    interleaved: bool = True,
) -> None:
    """Answer the cells that a file lacks, and add each to it when it is finished.

    Everything that can be checked is checked before the first answer: settings, problems, prompts, models.

    Args:
        cells: what to answer; those of one draft stand together.
        tasks: by name.
        load: loads models, once for each draft that has something to do.
        file: where results go.
        provenance: of the run; the date and a hash of the problems are added to it.
        report: called for each answer with a remark about its cell.
        interleaved: whether the cells of a task, draft and seed are answered side by side, so that their wall times can
            be compared; otherwise one after another.

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
    journal = Journal(journal_of(file.path))
    try:
        for draft, groups in groupby(_groups(todo, interleaved), key=lambda group: group[0].draft):
            for group in groups:
                _answer(group, tasks, engines, file, provenance, journal, report)
            engines[draft].close()  # what the next draft's engine takes may not be there twice
    finally:
        for engine in engines.values():
            engine.close()
        finished = {result.cell.key for result in file.results}
        journal.finish([of for cell in todo if cell.key in finished for of in [_name(cell, tasks, provenance)]])


def _groups(cells: Sequence[Cell], interleaved: bool) -> list[list[Cell]]:
    """Return the cells that are answered side by side: those of one task, draft and seed."""
    if not interleaved:
        return [[cell] for cell in cells]
    return [list(group) for _, group in groupby(cells, key=_side_by_side)]


def _side_by_side(cell: Cell) -> tuple[object, ...]:
    """Return what cells share that are answered side by side; starting vLLM takes minutes, so it never changes back."""
    return cell.draft, cell.task, cell.seed, cell.num_speculative_tokens if cell.engine == "vllm" else None


def _name(cell: Cell, tasks: Mapping[str, Task], provenance: Mapping[str, Any]) -> str:
    """Return what the journal files a cell's answers under: other problems or other code are another matter."""
    return f"{provenance.get('commit')} {tasks[cell.task].digest_of(cell.problems)} {cell.key}"


def _answer(
    cells: Sequence[Cell],
    tasks: Mapping[str, Task],
    engines: Mapping[str, Engine],
    file: ResultFile,
    provenance: Mapping[str, Any],
    journal: Journal,
    report: Callable[[str], None],
) -> None:
    """Answer cells side by side, one problem of each in turn, so that whatever slows the machine slows them all."""
    names = {cell: _name(cell, tasks, provenance) for cell in cells}
    rows = {cell: journal.rows(names[cell]) for cell in cells}
    for cell in cells:
        for _ in rows[cell]:
            report(label(cell))
    answers = {cell: tasks[cell.task].answer(engines[cell.draft], cell, len(rows[cell])) for cell in cells}
    while answers:
        # those that are behind catch up first: an earlier run may have been killed between two of them
        least = min(len(rows[cell]) for cell in answers)
        for cell in [cell for cell in answers if len(rows[cell]) == least]:
            if least < cell.problems:
                problem, answer, right = next(answers[cell])
                rows[cell].append(_row(problem, answer, right))
                journal.add(names[cell], rows[cell][-1])
                report(label(cell))
            if len(rows[cell]) == cell.problems:
                del answers[cell]
                columns = {name: [row[name] for row in rows[cell]] for name in rows[cell][0]}
                date = datetime.now(UTC).isoformat(timespec="seconds")
                digest = tasks[cell.task].digest_of(cell.problems)
                file.append(CellResult(cell, columns, {**provenance, "problems": digest, "date": date}))


def label(cell: Cell) -> str:
    """Return a cell's rule and draft length, for people."""
    budget = "" if cell.budget_nats is None else f" ≤{cell.budget_nats:g} nats"
    block = " block" if cell.verification == "block" else ""
    return f"{cell.rule}{budget}{block} ×{cell.num_speculative_tokens}"


def _row(problem: Problem, answer: Answer, right: bool | None) -> Row:
    """Return an answer's entry in each column."""
    row: Row = {"id": problem.id, "group": problem.group, "right": right, "finish_reason": answer.finish_reason}
    row |= {name: getattr(answer.metrics, name) for name in (*COUNTS, "seconds")}
    if not answer.relaxed_known:
        row["relaxed"] = None
    if answer.audited is not None:
        row |= {name: getattr(answer.audited, name) for name in AUDITED}
    return row
