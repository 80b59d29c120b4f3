"""Timing of functions against each other: interleaved, so that a busy machine slows all of them alike."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cactus_decoding.core.files.provenance import provenance

RESULTS = Path(__file__).resolve().parent / "results"


CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}
"""What passes while one waits, and what this thread was given of the processor: for one thread on a busy machine."""


def paired(functions: Mapping[str, Callable[[], object]], rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Return each function's median milliseconds, and the median over rounds of its time over the first one's.

    In every round each function runs once, in turn; two rounds before them are not counted.
    """
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + 2):
        for name, function in functions.items():
            start = now()
            function()
            if round_ >= 2:
                times[name].append(now() - start)
    first = next(iter(times.values()))
    return {
        name: {
            "ms": round(statistics.median(each) * 1e3, 4),
            "ratio": round(statistics.median(a / b for a, b in zip(each, first, strict=True)), 3),
        }
        for name, each in times.items()
    }


def paired_per_problem(
    functions: Mapping[str, Callable[[], Sequence[int] | None]], problems: int, rounds: int, clock: str
) -> dict[str, dict[str, float]]:
    """Do what `paired` does with functions that go through all problems, but return milliseconds of one of them.

    Beside them stands how many proposals are accepted on average, where a function returns their number for each.
    """
    accepted: dict[str, list[int]] = {name: [] for name in functions}
    counting = {
        name: lambda name=name, function=function: accepted[name].extend(function() or ())
        for name, function in functions.items()
    }
    times = paired(counting, rounds, clock)
    for name, time_ in times.items():
        time_["ms"] = round(time_["ms"] / problems, 4)
        if accepted[name]:
            time_["accepted"] = round(statistics.mean(accepted[name]), 2)
    return times


def add_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add what every benchmark takes."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="processor time only with one thread")


def write(name: str, arguments: Mapping[str, object], results: Mapping[str, object] | Sequence[object]) -> None:
    """Write results with where they come from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"results": results, "provenance": provenance(arguments)}, indent=1) + "\n")
    print(f"written to {path}")
