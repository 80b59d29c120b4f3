"""What proposals bring, and what `auto` makes of them: docs/studies/tables/proposals.md and docs/laptop.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pages import read, table

from cactus_decoding.lab.evaluation.intervals import Interval, bootstrapped, resampled_sums

KINDS = {
    "math": "GSM8K",
    "code": "HumanEval",
    "edit": "code to be edited",
    "summary": "summarising",
    "chat": "free chat",
    "problem": "word problems",
}
AUTO = {"suffix@auto": "`auto`, look-up", "draft@auto": "`auto`, draft"}
RUNS = {
    "never_slower_long": "1.5B, one thread",
    "never_slower_native": "1.5B, two threads, built for this processor",
    "never_slower_bundled": "bundled pair, one thread, temperature 0",
    "never_slower_bundled_warm": "bundled pair, one thread, temperature 1",
}


class Runs:
    """What `benchmarks/never_slower.py` measured: answers by kind of text, prompt, and way to propose."""

    def __init__(self, file: str) -> None:
        self.answers: dict[str, Any] = read(file)
        kinds, _, ways = zip(*(key.split("/") for key in self.answers), strict=True)
        self.kinds, self.ways = [*dict.fromkeys(kinds)], [*dict.fromkeys(ways)]
        self.fixed = [way for way in self.ways if way not in (*AUTO, "none", "none@again")]

    def prompts(self, kind: str) -> list[str]:
        return [prompt for own, prompt, way in (key.split("/") for key in self.answers) if (own, way) == (kind, "none")]

    def of(self, kind: str, way: str) -> list[dict[str, Any]]:
        return [self.answers[f"{kind}/{prompt}/{way}"] for prompt in self.prompts(kind)]

    def plain(self, kind: str) -> list[float]:
        """Return milliseconds of a token without proposals: the means of the answers before and after the others."""
        both = zip(self.of(kind, "none"), self.of(kind, "none@again"), strict=True)
        return [sum(run["milliseconds"] / run["tokens"] for run in runs) / 2 for runs in both]

    def speed(self, kind: str, way: str) -> Interval:
        """Return the speed of a way over that of no proposals, with its interval over prompts."""
        if way == "none":
            return mean(np.ones(len(self.prompts(kind))))
        ratios = [
            plain * run["tokens"] / run["milliseconds"]
            for plain, run in zip(self.plain(kind), self.of(kind, way), strict=True)
        ]
        return mean(np.array(ratios))

    def worst_loss(self, kind: str) -> tuple[float, int]:
        """Return what steps with proposals of `auto` lost at most, one after another, and within how many tokens."""
        plain = self.plain(kind) * len(AUTO)
        answers = [answer for way in AUTO for answer in self.of(kind, way)]
        return max(loss(answer["steps"], own) for answer, own in zip(answers, plain, strict=True))


def mean(ratios: np.ndarray[Any, np.dtype[np.float64]]) -> Interval:
    """Return the geometric mean with the interval over prompts."""
    logs = np.log(ratios)
    sums = resampled_sums(logs[:, None])[:, 0]
    return bootstrapped(float(np.exp(logs.mean())), np.exp(sums / len(logs)), len(logs))


def loss(steps: list[list[float]], plain: float) -> tuple[float, int]:
    """Return what steps with proposals lost against writing their tokens singly, and within how many tokens."""
    worst, before, gain, tokens = (0.0, 0), [(0.0, 0)], 0.0, 0
    for drafted, emitted, milliseconds in steps:
        tokens += int(emitted)
        if drafted:
            gain += emitted - milliseconds / plain
            top, at = max(before, key=lambda each: each[0])
            worst = max(worst, (top - gain, tokens - at))
        before.append((gain, tokens))
    return worst


def auto() -> str:
    """Return what `auto` brings, beside no proposals, and the best fixed choice of the same run."""
    rows = []
    for file, where in RUNS.items():
        runs = Runs(file)
        for kind in runs.kinds:
            speeds = {way: runs.speed(kind, way) for way in ("none", *runs.fixed)}
            best = max(speeds, key=lambda way: speeds[way].value)
            lost, tokens = runs.worst_loss(kind)
            chosen = "none" if best == "none" else f"{best.replace('@', ' ')}: {speeds[best].value:.2f}"
            autos = [runs.speed(kind, way).shown(2) for way in AUTO]
            worst = f"{lost:.0f} in {tokens}" if lost >= 0.5 else "0"
            rows.append([where, KINDS[kind], f"{1000 / np.median(runs.plain(kind)):.1f}", *autos, chosen, worst])
    return table(["", "", "none, tokens/s", *AUTO.values(), "best fixed choice", "worst loss, tokens"], rows)


def fixed() -> str:
    """Return what fixed numbers of proposals bring, beside none."""
    runs = Runs("never_slower")
    ways = [way for way in runs.ways if way not in (*AUTO, "none")]
    shown = [
        [name, *(f"{runs.speed(kind, way).value:.2f}" for way in ways)]
        for kind, name in KINDS.items()
        if kind in runs.kinds
    ]
    return table(["", *(way.replace("@", " ") for way in ways)], shown)


def expected() -> str:
    """Return what owners of files may expect: the speed with `auto`, and with three proposals in each step."""
    columns = {
        "`auto`, one thread": ("never_slower_long", "draft@auto"),
        "`auto`, two threads": ("never_slower_native", "draft@auto"),
        "always 3, one thread": ("never_slower", "draft@3"),
    }
    runs = [(Runs(file), way) for file, way in columns.values()]
    kinds = [kind for kind in KINDS if all(kind in run.kinds for run, _ in runs)]
    return table(
        ["answers", *columns], [[KINDS[kind], *(run.speed(kind, way).shown(2) for run, way in runs)] for kind in kinds]
    )


TABLES: dict[str, Callable[[], str]] = {"auto": auto, "fixed": fixed, "expected": expected}
