"""Step times: every rule at every length, side by side."""

from __future__ import annotations

from cactus_decoding import Request, load_pair
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.lab.frontier.recorded_rows import time_steps
from cactus_decoding.lab.frontier.relaxations import LOSSLESS, Relaxation
from cactus_decoding.zoo.word_problems import word_problems


def test_steps_are_timed_side_by_side():
    pair = load_pair()
    prompts = [problem.prompt for problem, _ in zip(word_problems("validation", seed=0), range(3), strict=False)]
    cactus, protected = Relaxation("cactus:delta=1.0"), Relaxation("cactus:delta=1.0", relaxation_policy("digits"))
    timed = [(LOSSLESS, 0), (LOSSLESS, 3), (cactus, 3), (protected, 3)]
    times = time_steps(pair, prompts, timed, Request(), steps=4)
    assert list(times) == timed
    assert all(values.shape == (3,) and bool((values > 0).all()) for values in times.values())
