"""A target's answers in chat under several settings, problem by problem: whether right, how long, in how many steps.

    python -m studies.real_pair.ask FILE --target T.gguf --draft D.gguf --task gsm8k:path=gsm8k_test.jsonl

Every problem is answered under each setting of `ASKED` before the next, by the evaluation that `cactus eval` runs, so
that stopping the command (it goes on where it was) leaves whole pairs. FILE.gz then holds, as results of `cactus eval`,
the problems that every setting has answered.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cactus_decoding.cli.evaluation_files import check_may_run
from cactus_decoding.evaluation.chat import Chat
from cactus_decoding.evaluation.engines.loading import load_engine
from cactus_decoding.evaluation.run_config import RunConfig
from cactus_decoding.evaluation.runs.results import Journal, RunResult, journal_of, opened
from cactus_decoding.evaluation.runs.runner import about, journal_name, run
from cactus_decoding.evaluation.tasks.sources import parse_task
from cactus_decoding.evaluation.tasks.task import Task
from cactus_decoding.files.provenance import provenance, with_engines
from cactus_decoding.generation.request import Request
from studies.stored import write_packed

CLAMPED, CACTUS = {"rule": "clamped:width=2.0"}, {"rule": "cactus:delta=1.0"}
PAPER = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
ASKED: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gsm8k": ({}, CLAMPED, CLAMPED | {"protect": "digits"}, CACTUS, CACTUS | {"budget_nats": 1.0}),
    "gsm8k, truncated": (PAPER, PAPER | CACTUS),
    "humaneval": ({}, CLAMPED, CACTUS),
    "ifeval": ({}, CACTUS, CACTUS | {"budget_nats": 1.0}, CACTUS | {"lossless_tokens": 64}),
}
"""Settings that are compared; the first of each is lossless."""
PROPOSALS, TOKENS = 3, 512
WORDS = 150
"""An IFEval prompt that asks for more words than this is left out: so few tokens do not hold them."""


def asked(spelling: str, problems: int) -> Task:
    """Return a task's first problems that can be answered in `TOKENS`."""
    task = parse_task(spelling, chat=True)
    documents = getattr(task.judge, "documents", {})
    fitting = [each for each in task.problems if _words(documents.get(each.id, {})) <= WORDS]
    return replace(task, problems=tuple(fitting[:problems]))


def _words(document: Mapping[str, Any]) -> int:
    """Return how many words an IFEval prompt asks for at least."""
    least = (each for each in document.get("kwargs", ()) if each.get("relation") == "at least")
    return max((each.get("num_words") or 0 for each in least), default=0)


class _TimeIsOver(Exception):
    """Ends a run between two answers."""


def main() -> None:
    """Answer, then write what all settings have answered."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--settings", choices=ASKED, help="those of the task, if not given")
    parser.add_argument("--problems", type=int, default=120)
    parser.add_argument("--allow-code-execution", action="store_true", help="humaneval runs what the target wrote")
    parser.add_argument("--minutes", type=float, default=1e9, help="of processor time, after which none is begun")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, until = asked(given.task, given.problems), time.process_time() + 60 * given.minutes
    check_may_run([task], given.allow_code_execution)
    count = len(task.problems)
    shared = {"num_speculative_tokens": PROPOSALS, "max_new_tokens": TOKENS}
    configs = [
        RunConfig(task.name, given.target, given.draft, "llama-cpp", count, Request.from_dict(shared | each), Chat())
        for each in ASKED[given.settings or task.name]
    ]
    said = {"study": "real_pair", "settings": given.settings or task.name, "problems": count}
    made_by = with_engines(provenance(said))
    working = given.file.with_name(given.file.name + ".working")
    load = partial(load_engine, "llama-cpp", given.target, audited=False)

    def report(remark: str) -> None:
        print(time.strftime("%H:%M:%S"), remark, flush=True)
        if time.process_time() > until:
            raise _TimeIsOver

    with opened(working) as file:
        with suppress(_TimeIsOver, KeyboardInterrupt):
            run(configs, {task.name: task}, load, file, made_by, report)
        ended = {result.config: result.answers for result in file.results}
    columns, journal = [], Journal(journal_of(working))
    for config in configs:
        entries = journal.entries(journal_name(config, {task.name: task}, made_by))
        if config not in ended and not entries:
            raise SystemExit(f"no problem is answered under every setting yet: {config.label} is missing")
        columns.append(ended.get(config) or {name: [each.get(name) for each in entries] for name in entries[0]})
    answered = min(len(each["id"]) for each in columns)
    lines = []
    for config, mine in zip(configs, columns, strict=True):
        cut = replace(config, problems=answered)
        first = {name: column[:answered] for name, column in mine.items()}
        lines.append(RunResult(cut, first, made_by | about(task, cut)).line())
    write_packed(given.file, "".join(lines))


if __name__ == "__main__":
    main()
