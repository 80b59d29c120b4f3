"""The tables of docs/studies/tables/proposals.md: what proposals bring, and what `auto` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from pages import columns, read, table

from cactus_decoding.core.drafting.timing import PassTimes
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
TIMED = "Qwen2.5-Coder-1.5B"
LOOKED_UP = {"`suffix`": "`suffix`", "`ngram`": "`ngram`", "llama-cpp-python's prompt lookup": "llama-cpp-python's"}
BUILDS = {"one thread, `AVX2`": "never_slower", "two threads, `AVX-512`": "never_slower_native"}


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


def fixed(file: str) -> str:
    """Return what fixed numbers of proposals bring, beside none."""
    runs = Runs(file)
    ways = [way for way in runs.ways if way not in (*AUTO, "none")]
    shown = [
        [name, *(f"{runs.speed(kind, way).value:.2f}" for way in ways)]
        for kind, name in KINDS.items()
        if kind in runs.kinds
    ]
    return table(["", *(way.replace("@", " ") for way in ways)], shown)


def long_prompts() -> str:
    """Return what a draft reads of prompts of some lengths, and what that costs."""
    runs, rows = Runs("never_slower_prompts"), []
    for kind in runs.kinds:
        chosen, three = runs.of(kind, "draft@auto"), runs.of(kind, "draft@3")
        first = [run["steps"][0] for run in three]
        later = [
            plain * (run["tokens"] - emitted) / (run["milliseconds"] - milliseconds)
            for plain, run, (_, emitted, milliseconds) in zip(runs.plain(kind), three, first, strict=True)
        ]
        rows.append([
            kind, f"{runs.speed(kind, 'draft@auto').value:.2f}",
            f"{np.mean([run['draft_read'] for run in chosen]):.0f}",
            f"{np.mean([drafted for run in chosen for drafted, _, _ in run['steps']]):.2f}",
            f"{runs.speed(kind, 'draft@3').value:.2f}", f"{np.mean([step[2] for step in first]) / 1000:.1f}",
            f"{mean(np.array(later)).value:.2f}",
        ])  # fmt: skip
    head = ["tokens of the prompt", "`auto`", "read by its draft", "proposals per step", "draft 3"]
    return table([*head, "its first step, seconds", "draft 3, later steps"], rows)


def load() -> str:
    """Return what steps take before and after another process wants a core, and what they propose."""
    runs, rows = Runs("never_slower_load"), []
    begins = read("never_slower_load", "settings")["load_after"]
    for way in ("none", "draft@auto", "suffix@auto"):
        before, after = np.zeros(4), np.zeros(4)
        for answer in (each for kind in runs.kinds for each in runs.of(kind, way)):
            written = 0
            for drafted, emitted, milliseconds in answer["steps"]:
                (before if written < begins else after)[:] += 1, drafted, emitted, milliseconds
                written += emitted
        cells = [f"{milliseconds / emitted:.1f}" for _, _, emitted, milliseconds in (before, after)]
        cells += [f"{drafted / steps:.2f}" for steps, drafted, _, _ in (before, after)]
        rows.append(["one", AUTO.get(way, way), *cells])
    return table(["threads", "", "ms a token before", "after", "proposals per step before", "after"], rows)


def forecast() -> str:
    """Return what tuning forecast, and what was measured."""
    runs, forecasts, speeds = Runs("forecast"), read("forecast", "forecasts"), {}
    for way in forecasts:
        made = runs.of("math", way)
        speeds[way] = 1000 * sum(each["tokens"] for each in made) / sum(each["milliseconds"] for each in made)
    return columns([each | {"way": way} for way, each in forecasts.items()], {
        "": lambda row: row["way"].replace("@", " "),
        "forecast, tokens/s": "{tokens_per_second:.1f}",
        "measured": lambda row: f"{speeds[row['way']]:.1f}",
        "ratio": lambda row: f"{row['tokens_per_second'] / speeds[row['way']]:.2f}",
        "forecast over none": "{speedup:.2f}",
        "measured over none": lambda row: f"{speeds[row['way']] / speeds['none']:.2f}",
    })  # fmt: skip


def look_ups() -> str:
    """Return what look-ups bring on given answers: kept per step, proposed per kept, and speed by measured passes."""
    times = [PassTimes.from_dict(read(file, "times"), file) for file in BUILDS.values()]
    rows = []
    for model, looked_up in read("look_ups").items():
        for kind in looked_up["`ngram`"]:
            for name, title in LOOKED_UP.items():
                counts = looked_up[name][kind]
                speeds = [f"{speed_of(counts, each):.2f}" if model == TIMED else "" for each in times]
                kept = counts["accepted"] / counts["steps"], counts["proposed"] / max(counts["accepted"], 1)
                rows.append([model.rpartition("-")[2], kind, title, f"{kept[0]:.2f}", f"{kept[1]:.1f}", *speeds])
    head = ["", "", "look-up", "kept per step", "proposed per kept", *(f"speed, {build}" for build in BUILDS)]
    return table(head, rows)


def speed_of(counts: dict[str, int], times: PassTimes) -> float:
    """Return the speed of steps whose passes are counted by width, over that of one token a pass."""
    widths = {int(key.rpartition(" ")[2]): count for key, count in counts.items() if key.startswith("passes over ")}
    taken = sum(count * times.of(width) for width, count in widths.items())
    return (counts["steps"] + counts["accepted"]) * times.of(1) / taken


def builds() -> str:
    """Return what passes cost with each build of llama.cpp, and how many of one token's they are."""
    every = {"`AVX-512`" if "AVX512" in name else "`AVX2`": found for name, found in read("builds").items()}
    rows = [
        [name, *(f"{taken:.0f} ({taken / found['1']:.1f})" for taken in found.values())]
        for name, found in every.items()
    ]
    return table(["built for", *next(iter(every.values()))], rows)


TABLES: dict[str, Callable[[], str]] = {
    "auto": auto,
    "long_prompts": long_prompts,
    "load": load,
    "fixed": partial(fixed, "never_slower"),
    "fixed_native": partial(fixed, "never_slower_native"),
    "forecast": forecast,
    "look_ups": look_ups,
    "builds": builds,
}
