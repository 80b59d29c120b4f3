"""Steps along a text, by enumeration."""

from __future__ import annotations


def expected_steps(chances: list[float], k: int) -> float:
    """Return the steps that a text takes on average, by a walk through every outcome of every step."""
    if not chances:
        return 0.0
    steps, reached = 1.0, 1.0
    for kept in range(k + 1):
        ends = kept == k or kept >= len(chances)
        chance = reached * (1.0 if ends else 1 - chances[kept])
        steps += chance * expected_steps(chances[kept + 1 :], k)
        if ends:
            return steps
        reached *= chances[kept]
    return steps
