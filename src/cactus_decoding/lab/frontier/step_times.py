"""How long a step takes with each relaxation at each draft length: measured, all of them side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from cactus_decoding.core.generate import generate, stream
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.lab.evaluation.intervals import Numbers
from cactus_decoding.lab.frontier.relaxations import Relaxation, asking

RelaxationAtLength = tuple[Relaxation, int]
"""A rule, where it may relax, and the number of proposals."""


def time_steps(
    pair: Pair,
    prompts: Sequence[str],
    timed: Sequence[RelaxationAtLength],
    request: Request,
    *,
    steps: int = 12,
    report: Callable[[int], None] = lambda done: None,
) -> dict[RelaxationAtLength, Numbers]:
    """Return the median wall time of a step in each round, in seconds, ``[rounds]``.

    A round takes one prompt, and everything that is timed answers it in turn, so that whatever slows the machine down
    for a while strikes all of them; every round begins with another one. The first step, which reads the prompt, is
    left out.

    ``prompts`` has one for each round, ``request`` what else is asked of the answers (its seed is the first one's), and
    at most ``steps`` of each answer are timed; ``report`` is called with how many are given.
    """
    times: dict[RelaxationAtLength, list[float]] = {each: [] for each in timed}
    generate(pair, prompts[0], num_speculative_tokens=2, max_new_tokens=8, seed=0)  # a process's first passes are slow
    done = 0
    for place, prompt in enumerate(prompts):
        turn, seed = place % len(timed), (request.seed or 0) + place
        for relaxation, length in [*timed[turn:], *timed[:turn]]:
            asked = asking(request.replace(seed=seed), relaxation, length)
            response = stream(pair, prompt, asked)
            seconds: list[float] = []
            for _ in response:
                seconds.append(response.metrics.seconds - sum(seconds))
                if len(seconds) > steps:
                    break
            times[relaxation, length].append(statistics.median(seconds[1:]) if len(seconds) > 1 else math.nan)
            done += 1
            report(done)
    found = {each: np.array(values) for each, values in times.items()}
    kept = np.all([np.isfinite(values) for values in found.values()], axis=0)
    if not kept.any():
        raise ValueError("the answers are too short to time a step: every one of them ended with its first step")
    return {each: values[kept] for each, values in found.items()}
