"""How many threads a model reads with, and what passes of every width cost then."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from cactus_decoding.core.drafting.automatic import times
from cactus_decoding.core.models.base import BaseCachedModel

WIDTHS = (1, 4, 2, 8, 3, 12, 16, 6, 5, 7, 10, 9, 11, 14, 13, 15)
"""Tokens of the passes that are timed, those first that are cheap where kernels work on blocks of four rows."""
_SAME = 1.03
"""A number of threads is worth its cores where it saves more."""


def thread_counts() -> list[int]:
    """Return numbers of threads to try: 1 to 4, and from there about half as many more each time, to all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = [1, 2, 3, *(each << power for power in range(12) for each in (4, 6))]
    return [*(count for count in sizes if count < cores), cores]


def chosen_threads(seconds: Mapping[int, float]) -> int:
    """Return the fewest threads that are as good as the fastest.

    >>> chosen_threads({1: 1.0, 2: 0.52, 3: 0.51})
    2
    """
    return min(count for count, taken in seconds.items() if taken <= _SAME * min(seconds.values()))


def use_fastest_threads(model: BaseCachedModel, counts: Sequence[int], widths: Sequence[int], until: float) -> int:
    """Try numbers of threads on passes of some widths, have the model use the best one, and return it.

    They are compared by the time on the wall, the best of three each: what other programs do on the machine at the same
    time falls on all of them, or on none. Each is tried once, and no further pass is begun at ``until``, by
    `time.perf_counter`; a single number is not timed.
    """
    taken: dict[int, float] = {}
    for count in counts if len(counts) > 1 else ():
        model.use_threads(count)
        found = times.time_passes(model, widths, time.perf_counter, 3, until)
        taken[count] = sum(found.values()) if len(found) == len(widths) else found[widths[0]] * len(widths)
    chosen = chosen_threads(taken) if taken else counts[0]
    model.use_threads(chosen)
    return chosen
