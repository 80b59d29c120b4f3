"""How long a step takes at each draft length: measured, all settings side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from cactus_decoding.evaluation.intervals import Numbers
from cactus_decoding.generation.generate import stream
from cactus_decoding.generation.pair import Pair
from cactus_decoding.sampling.params import SamplingParams

Setting = tuple[str, int]
"""A rule's spelling and the number of proposals."""


def time_steps(
    pair: Pair,
    prompts: Sequence[str],
    settings: Sequence[Setting],
    *,
    sampling: SamplingParams,
    steps: int = 12,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> dict[Setting, Numbers]:
    """Return the median wall time of a step in each round, in seconds, ``[rounds]`` for each setting.

    A round takes one prompt, and every setting answers it in turn, so that whatever slows the machine down for a while
    strikes all of them; every round begins with another setting. The first step, which reads the prompt, is left out.

    Args:
        pair: the models.
        prompts: one for each round.
        settings: what is timed.
        sampling: of both models.
        steps: that are timed of each answer, at most.
        seed: of the answers.
        report: called with how many answers are given.

    Raises:
        ValueError: where a prompt's answers are too short to time a step.
    """
    times: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for _ in stream(pair, prompts[0], num_speculative_tokens=2, max_new_tokens=8, seed=0):
        pass  # the first passes of a process are slow
    done = 0
    for place, prompt in enumerate(prompts):
        turn = place % len(settings)
        for rule, length in [*settings[turn:], *settings[:turn]]:
            response = stream(
                pair, prompt, rule=rule, num_speculative_tokens=length, seed=seed + place, **vars(sampling)
            )
            seconds: list[float] = []
            for _ in response:
                seconds.append(response.metrics.seconds - sum(seconds))
                if len(seconds) > steps:
                    break
            if len(seconds) > 1:
                times[rule, length].append(statistics.median(seconds[1:]))
            else:
                times[rule, length].append(float("nan"))
            done += 1
            report(done)
    found = {setting: np.array(values) for setting, values in times.items()}
    kept = np.all([np.isfinite(values) for values in found.values()], axis=0)
    if not kept.any():
        raise ValueError("the answers are too short to time a step: every one of them ended with its first step")
    return {setting: values[kept] for setting, values in found.items()}
