"""Generation tasks of lm-evaluation-harness as tasks of ours: the harness asks and scores, our engines answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cactus_decoding.core.extras import needing
from cactus_decoding.core.mistakes import suggestion
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine, Problem
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.tasks.task import Task


@dataclass(frozen=True, eq=False)
class HarnessTask(Task):
    """A task of the harness, whose ``manager`` finds tasks by name.

    An answer is right where the first metric of the task that is 0 or 1 says so; without one there is no score.
    """

    manager: Any = None

    def answer(
        self, engine: Engine, config: RunConfig, start: int = 0
    ) -> Iterator[tuple[Problem, Answer, bool | None]]:
        """Let the harness ask everything, then yield what came out; it cannot start in the middle."""
        import lm_eval

        from cactus_decoding.lab.evaluation.tasks.harness_model import CactusLM

        model = CactusLM(engine, config)
        name = self.name.removeprefix(PREFIX)
        results = lm_eval.simple_evaluate(
            model=model, tasks=[name], limit=config.problems, task_manager=self.manager, bootstrap_iters=0,
            apply_chat_template=config.chat is not None, system_instruction=config.chat and config.chat.system,
        )  # fmt: skip
        right: dict[int, bool | None] = {}
        for sample in results["samples"][name]:  # one for each filter of a document: the first decides
            right.setdefault(sample["doc_id"], _right(sample))
        for place, problem in islice(enumerate(self.problems[: config.problems]), start, None):
            yield problem, model.answers[name, place], right[place]


PREFIX = "lm_eval:"


def _right(sample: dict[str, Any]) -> bool | None:
    for metric in sample["metrics"]:
        value = sample.get(metric)
        if isinstance(value, (bool, int, float)) and value in (0, 1):
            return bool(value)
    return None


def harness_tasks(names: str, include: Path | None, problems: int | None) -> list[Task]:
    """Return tasks of the harness, those of a group one by one.

    Names are comma-separated; ``include`` is a folder with further definitions; of each task the first ``problems`` are
    asked.
    """
    with needing("--lm-eval needs lm-evaluation-harness", "eval"):
        from lm_eval.tasks import TaskManager
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=None if include is None else str(include))
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in manager.all_tasks]
    if unknown or not wanted:
        close = suggestion(unknown[0], manager.all_tasks) if unknown else ""
        raise ValueError(f"unknown task of lm-evaluation-harness: {', '.join(unknown) or repr(names)}{close}")
    try:
        found = manager.load(wanted)["tasks"]
    except Exception as error:  # its tasks run code of their own, and read what a user or the hub provides
        detail = f"{type(error).__name__}: {error}"
        raise ValueError(f"lm-evaluation-harness cannot load {names}: {detail}") from error
    return [_task(name, each, manager, problems) for name, each in found.items()]


def _task(name: str, task: Any, manager: Any, problems: int | None) -> HarnessTask:
    if task.OUTPUT_TYPE != "generate_until":
        raise ValueError(
            f"task {name!r} of lm-evaluation-harness scores given continuations ({task.OUTPUT_TYPE}), which no "
            "acceptance rule changes; only tasks that generate can be compared"
        )
    task.build_all_requests(limit=problems, rank=0, world_size=1)
    asked = tuple(Problem(str(request.doc_id), request.args[0]) for request in task.instances)
    if len({problem.id for problem in asked}) < len(asked):
        raise ValueError(f"task {name!r} of lm-evaluation-harness wants several answers to a problem; allowed is one")
    return HarnessTask(PREFIX + name, asked, manager=manager)
