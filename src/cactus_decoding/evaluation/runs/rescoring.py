"""Scores stored answers anew: nothing decodes, the tasks judge the texts of a result file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cactus_decoding.evaluation.engines.engine import Answer
from cactus_decoding.evaluation.run_config import seed_of
from cactus_decoding.evaluation.runs.results import RunResult
from cactus_decoding.evaluation.runs.runner import about
from cactus_decoding.evaluation.tasks.task import Task
from cactus_decoding.files.provenance import commit
from cactus_decoding.generation.request import Request


class StoredAnswers:
    """An engine that gives the answers of a finished run, each to the request that has its seed.

    Args:
        result: with the answers' texts.
    """

    def __init__(self, result: RunResult) -> None:
        texts, reasons = result.answers["text"], result.answers["finish_reason"]
        self._answers = {
            seed_of(result.config.seed, place): Answer(text, reason)
            for place, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        }

    def check(self, request: Request) -> None:
        """Take every request: it was answered."""

    def check_prompt(self, prompt: str, request: Request) -> None:
        """Take every prompt likewise."""

    def answer(self, prompt: str, request: Request) -> Answer:
        """Return the stored answer."""
        assert request.seed is not None  # a run's requests have one
        return self._answers[request.seed]

    def close(self) -> None:
        """Do nothing."""


def rescored(results: Sequence[RunResult], tasks: Mapping[str, Task], source: str) -> Iterator[RunResult]:
    """Yield the runs with their texts scored by the tasks; everything else is as it was.

    Args:
        results: of one file.
        tasks: by the names that the runs have.
        source: the file, which the provenance then names.

    Raises:
        ValueError: for a run without texts, without a task, or of a task that asks something else.
    """
    for result in results:
        config, named = result.config, f"{source}: the run of {result.config.rule}"
        if config.task not in tasks:
            raise ValueError(f"{named} is of task {config.task!r}: give it as --task or --lm-eval")
        if any(text is None for text in result.answers.get("text", [None])):
            raise ValueError(f"{named} holds no texts, as results of version 0.1: its answers cannot be scored anew")
        task = tasks[config.task]
        said = about(task, config)
        if len(task.problems) < config.problems or result.provenance.get("prompts") != said["prompts"]:
            raise ValueError(f"{named} answers other problems than task {config.task!r} asks")
        right = [right for _, _, right in task.answer(StoredAnswers(result), config)]
        rescoring = {"from": source, "commit": commit(), "date": said["date"]}
        provenance = {**result.provenance, "problems": said["problems"], "rescored": rescoring}
        yield RunResult(config, {**result.answers, "right": right}, provenance)
