"""Processes that answer the same requests in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns at least the ``tokens`` of the answer to a request."""


class Contender:
    """A process that answers requests: see end_to_end_worker.py. One named ``before|...`` is ours of a checkout."""

    def __init__(
        self, name: str, *, python: str, script: str, options: Mapping[str, object], checkout: Path | None = None
    ) -> None:
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        threads = str(options["threads"])
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)  # an interpreter of its own has packages of its own
        folder = HERE
        if checkout is not None:
            folder, environment["PYTHONPATH"] = checkout / "benchmarks", str(checkout / "src")
        self.name = name
        self._process = subprocess.Popen(
            [python, str(folder / script), name.replace("before|", "ours|", 1), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._read() == {"ready": True}

    def answer(self, **request: object) -> dict[str, Any]:
        """Return seconds, CPU seconds, tokens and the peak memory so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")
        return json.loads(line)


class LocalContender:
    """Answers in this process, so that several can share models that are too large to be loaded by each."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name, self._answer = name, answer

    def answer(self, **request: object) -> dict[str, Any]:
        """Return what `timed` does."""
        return timed(self._answer, request)


def timed(answer: Answer, request: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with its seconds, CPU seconds, and the peak memory of this process so far.

    ``others`` is the share of the machine's processors that other processes had meanwhile, where Linux tells.
    """
    busy, cpu, start = _busy_seconds(), time.process_time(), time.perf_counter()
    found = answer(request)
    reply = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, **found}
    more = _busy_seconds() - busy - reply["cpu_seconds"]
    reply["others"] = max(more / (reply["seconds"] * (os.cpu_count() or 1)), 0.0)
    return {**reply, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _busy_seconds() -> float:
    """Return how long all processors together have been at work; 0 where that is unknown."""
    try:
        user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def race(
    contenders: Sequence[Contender | LocalContender],
    requests: Sequence[Mapping[str, object]],
    *,
    first: int = 0,
    warm_ups: int = 2,
) -> dict[str, list[dict[str, Any]]]:
    """Let every contender answer each request, in an order that rotates, beginning with ``first``.

    The first two requests warm up, or as many as ``warm_ups`` says.
    """
    answers: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for i, request in enumerate([*requests[:warm_ups], *requests]):
        for j in range(len(contenders)):
            contender = contenders[(first + i + j) % len(contenders)]
            reply = contender.answer(**request)
            if i >= warm_ups:
                answers[contender.name].append(reply)
    return answers


def summary(answers: Mapping[str, Sequence[Mapping[str, Any]]], baselines: Sequence[str]) -> dict[str, Any]:
    """Return each contender's median tokens per second, and the medians of its ratios to the baselines'.

    Seconds are of wall time; ``cpu`` says the same of CPU time, in which a busy machine shows less.
    """
    rates = {
        clock: {name: [len(reply["tokens"]) / reply[clock] for reply in replies] for name, replies in answers.items()}
        for clock in ("seconds", "cpu_seconds")
    }

    def ratio(clock: str, name: str, baseline: str) -> float:
        pairs = zip(rates[clock][name], rates[clock][baseline], strict=True)
        return round(statistics.median(ours / theirs for ours, theirs in pairs), 3)

    return {
        name: {
            "tokens_per_second": round(statistics.median(rates["seconds"][name]), 1),
            "tokens_per_cpu_second": round(statistics.median(rates["cpu_seconds"][name]), 1),
            "ratio": {b: ratio("seconds", name, b) for b in baselines if b in answers},
            "ratio_cpu": {b: ratio("cpu_seconds", name, b) for b in baselines if b in answers},
            "tokens": sum(len(reply["tokens"]) for reply in replies),
            "peak_mib": round(max(reply["peak_mib"] for reply in replies)),
        }
        for name, replies in answers.items()
    }
