"""How long runs will take, before their first answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cactus_decoding.core.drafting.lengths.base import LearnsNothing
from cactus_decoding.lab.evaluation.engines.engine import Engine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.tasks.task import Task, prompt_of

_TOKENS = 8
"""What is timed of an answer, behind its first token."""


def longest_seconds(
    configs: Sequence[RunConfig], engines: Mapping[str, Engine], tasks: Mapping[str, Task]
) -> float | None:
    """Return about how long runs take if every answer has all of its tokens.

    A few tokens of the first problem are timed under the first run of each draft. None where that would change what is
    measured, or take long itself.
    """
    seconds = 0.0
    for draft in dict.fromkeys(config.draft for config in configs):
        runs = [config for config in configs if config.draft == draft]
        first = runs[0]
        if first.engine == "vllm" or not isinstance(first.request.draft_length, LearnsNothing):
            return None
        prompt = prompt_of(engines[draft], tasks[first.task].problems[0], first.chat)
        begun, more = (
            engines[draft].answer(prompt, first.request_at(0).replace(max_new_tokens=tokens)).metrics
            for tokens in (1, 1 + _TOKENS)
        )
        per_token = max(more.seconds - begun.seconds, 0.0) / max(more.generated - begun.generated, 1)
        for run in runs:
            turns = sum(1 + len(problem.follow_ups) for problem in tasks[run.task].problems[: run.problems])
            seconds += turns * (begun.seconds + per_token * run.request.max_new_tokens)
    return seconds
