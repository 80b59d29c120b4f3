"""Timing of functions against each other: interleaved, so that a busy machine slows all of them alike."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cactus_decoding.provenance import provenance

RESULTS = Path(__file__).resolve().parent / "results"


def paired(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Return each function's median milliseconds, and the median over rounds of its time over the first one's.

    In every round each function runs once, in turn; two rounds before them are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + 2):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if round_ >= 2:
                times[name].append(time.perf_counter() - start)
    first = next(iter(times.values()))
    return {
        name: {
            "ms": round(statistics.median(each) * 1e3, 4),
            "ratio": round(statistics.median(a / b for a, b in zip(each, first, strict=True)), 3),
        }
        for name, each in times.items()
    }


def write(name: str, arguments: Mapping[str, object], results: Mapping[str, object]) -> None:
    """Write results with where they come from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"results": results, "provenance": provenance(arguments)}, indent=1) + "\n")
    print(f"written to {path}")
