"""What benchmarks share: their arguments and result files, and functions that are timed in turn.

Turns are taken within each round, so that a busy machine slows all functions alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
if str(ROOT) not in sys.path:  # benchmarks are run as scripts
    sys.path.append(str(ROOT))

from scripts.results import asked, parse, parser, read, write  # noqa: E402, F401

CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time, "process": time.process_time}
"""What passes while one waits; what this thread was given of the processor; and all threads of the process."""
TIMED: dict[str, Any] = {
    "threads": 2,
    "clock": ("wall", "processor time only with one thread", {"choices": ["wall", "processor"]}),
}
"""Options of most benchmarks that time functions."""
Times = dict[str, dict[str, float]]


def benchmark(
    about: str | None,
    name: str,
    measure: Callable[[Namespace], Iterable[Mapping[str, Any]]],
    /,
    *,
    indent: int | None = 1,
    **options: Any,
) -> None:
    """Measure, and write the result each time that there is more of it, with the arguments that made it.

    Args:
        about: the module's docstring.
        name: of the usual result file.
        measure: yields what is known so far.
        indent: of the result file; None for one long line.
        options: of the command line, as `scripts.results.parser` takes them; ``threads`` are torch's too.
    """
    given = parse(about, **options, output=(RESULTS / f"{name}.json", "the result file"))
    if "threads" in given:
        torch.set_num_threads(given.threads)
    for found in measure(given):
        write(given.output, found, asked(given), indent)
    print(f"written to {given.output}")


def kept(output: Path, key: str) -> Any:
    """Return what a result file has under a key, so that it need not be measured again; nothing if there is no file."""
    return read(output)[key] if output.exists() else {}


def continued(output: Path, settings: Mapping[str, Any], key: str) -> Any:
    """Do what `kept` does, where the file is of the same settings."""
    known = kept(output, "settings")
    if known and known != settings:
        mistaken(f"{output} is of {known}, but this run is of {settings}")
    return kept(output, key)


def mistaken(message: str) -> NoReturn:
    """Say what is wrong with what was asked, and end."""
    print(message, file=sys.stderr)
    raise SystemExit(2)


def in_turn(
    functions: Mapping[str, Callable[[], object]], rounds: int, clock: str = "wall", warm_ups: int = 2
) -> dict[str, list[float]]:
    """Return the seconds of each function, one a round; the first rounds warm up, and are not counted."""
    now = CLOCKS[clock]
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds + warm_ups):
        for name, function in functions.items():
            start = now()
            function()
            if round_ >= warm_ups:
                times[name].append(now() - start)
    return times


def paired(functions: Mapping[str, Callable[[], object]], rounds: int, clock: str) -> Times:
    """Return each function's median milliseconds, and the median over rounds of its time over the first one's."""
    times = in_turn(functions, rounds, clock)
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
) -> Times:
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


def told(shape: Mapping[str, Any], times: Times) -> dict[str, Any]:
    """Print what `paired` found, and return it with what was measured."""
    print(shape)
    for name, taken in times.items():
        accepted = f"   {taken['accepted']:.2f} accepted" if "accepted" in taken else ""
        print(f"  {name:36} {taken['ms']:9.3f} ms   {taken['ratio']:8.3f} x {next(iter(times))}{accepted}", flush=True)
    return {**shape, "times": times}
