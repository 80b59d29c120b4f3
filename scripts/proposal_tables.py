"""The tables of docs/studies/tables/proposals.md: what proposals bring, and what `auto` makes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from pages import RESULTS, read, table

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
PLAIN = "none", "none@again"


RUNS = {
    "never_slower_long": "1.5B, one thread",
    "never_slower_two_threads": "1.5B, two threads",
    "never_slower_native": "1.5B, two threads, built for this processor",
    "never_slower_bundled": "bundled pair, one thread, temperature 0",
    "never_slower_bundled_warm": "bundled pair, one thread, temperature 1",
    "never_slower_bundled_two_threads": "bundled pair, two threads, temperature 0",
}


def _measured(titles: dict[str, str]) -> dict[str, str]:
    """Return those of which there is a result file."""
    return {name: title for name, title in titles.items() if (RESULTS / f"{name}.json").exists()}


NOTHING = "Not measured yet."


def _auto() -> str:
    """Return what `auto` brings, beside no proposals, and the best fixed choice of the same run."""
    rows = []
    for file, where in _measured(RUNS).items():
        runs = read(file)
        fixed = [way for way in _ways(runs) if not way.endswith(("auto", "again"))]
        for kind in dict.fromkeys(key.split("/")[0] for key in runs):
            speeds = {way: _mean(_speeds(runs, kind, way)) for way in [*AUTO, *fixed]}
            best = max(fixed, key=lambda way: speeds[way].value)
            lost, tokens = max(_loss(runs, key) for key in runs if key.startswith(f"{kind}/") and key.endswith("auto"))
            plain = 1000 / np.median([_plain(runs, kind, i) for i in _prompts(runs, kind)])
            chosen = "none" if best == "none" else f"{best.replace('@', ' ')}: {speeds[best].value:.2f}"
            autos = [speeds[way].shown(2) for way in AUTO]
            worst = f"{lost:.0f} in {tokens}" if lost >= 0.5 else "0"
            rows.append([where, KINDS[kind], f"{plain:.1f}", *autos, chosen, worst])
    return table(["", "", "none, tokens/s", *AUTO.values(), "best fixed choice", "worst loss, tokens"], rows)


def _fixed(file: str = "never_slower") -> str:
    """Return what fixed numbers of proposals bring, beside none."""
    runs = read(file)
    ways = [way for way in _ways(runs) if way not in AUTO and way != "none"]
    shown = [
        [name, *(f"{_mean(_speeds(runs, kind, way)).value:.2f}" for way in ways)]
        for kind, name in KINDS.items()
        if _prompts(runs, kind)
    ]
    return table(["", *(way.replace("@", " ") for way in ways)], shown)


def _long_prompts() -> str:
    """Return what a draft reads of prompts of some lengths, and what that costs."""
    if not _measured({"never_slower_prompts": ""}):
        return NOTHING
    runs, rows = read("never_slower_prompts"), []
    for kind in dict.fromkeys(key.split("/")[0] for key in runs):
        asked = _prompts(runs, kind)
        auto, fixed = ([runs[f"{kind}/{i}/draft@{length}"] for i in asked] for length in ("auto", "3"))
        first = [run["steps"][0] for run in fixed]
        later = [
            _plain(runs, kind, i) * (run["tokens"] - step[1]) / (run["milliseconds"] - step[2])
            for i, run, step in zip(asked, fixed, first, strict=True)
        ]
        rows.append(
            [
                kind,
                f"{_mean(_speeds(runs, kind, 'draft@auto')).value:.2f}",
                f"{np.mean([run['draft_read'] for run in auto]):.0f}",
                f"{np.mean([drafted for run in auto for drafted, _, _ in run['steps']]):.2f}",
                f"{_mean(_speeds(runs, kind, 'draft@3')).value:.2f}",
                f"{np.mean([step[2] for step in first]) / 1000:.1f}",
                f"{_mean(np.array(later)).value:.2f}",
            ]
        )
    head = ["tokens of the prompt", "`auto`", "read by its draft", "proposals per step", "draft 3"]
    return table([*head, "its first step, seconds", "draft 3, later steps"], rows)


LOADS = {"never_slower_load": "one", "never_slower_load_two_threads": "two"}


def _load() -> str:
    """Return what steps take before and after another process wants a core, and what they propose."""
    rows = []
    for file, threads in _measured(LOADS).items():
        runs, begins = read(file), read(file, "settings")["load_after"]
        for way in ("none", "draft@auto", "suffix@auto"):
            before, after = np.zeros(4), np.zeros(4)
            for key in runs:
                if not key.endswith(f"/{way}"):
                    continue
                written = 0
                for drafted, emitted, milliseconds in runs[key]["steps"]:
                    (before if written < begins else after)[:] += 1, drafted, emitted, milliseconds
                    written += emitted
            cells = [f"{milliseconds / emitted:.1f}" for _, _, emitted, milliseconds in (before, after)]
            cells += [f"{drafted / steps:.2f}" for steps, drafted, _, _ in (before, after)]
            rows.append([threads, AUTO.get(way, way), *cells])
    head = ["threads", "", "ms a token before", "after", "proposals per step before", "after"]
    return table(head, rows) if rows else NOTHING


def _forecast() -> str:
    """Return what tuning forecast, and what was measured."""
    forecasts, answers = read("forecast", "forecasts"), read("forecast", "answers")
    speeds = {}
    for way in forecasts:
        made = [answer for key, answer in answers.items() if key.endswith(f"/{way}")]
        speeds[way] = 1000 * sum(each["tokens"] for each in made) / sum(each["milliseconds"] for each in made)
    shown = [
        [way.replace("@", " "), f"{each['tokens_per_second']:.1f}", f"{speeds[way]:.1f}",
         f"{each['tokens_per_second'] / speeds[way]:.2f}", f"{each['speedup']:.2f}",
         f"{speeds[way] / speeds['none']:.2f}"]
        for way, each in forecasts.items()
    ]  # fmt: skip
    head = ["", "forecast, tokens/s", "measured", "ratio", "forecast over none", "measured over none"]
    return table(head, shown)


def _ways(runs: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(key.split("/")[2] for key in runs))


def _prompts(runs: dict[str, Any], kind: str) -> list[str]:
    return [key.split("/")[1] for key in runs if key.startswith(f"{kind}/") and key.endswith("/none")]


def _plain(runs: dict[str, Any], kind: str, prompt: str) -> float:
    """Return milliseconds of a token without proposals: the mean of the answers before and after the others."""
    both = [runs[f"{kind}/{prompt}/{way}"] for way in PLAIN]
    return sum(run["milliseconds"] / run["tokens"] for run in both) / len(both)


def _speeds(runs: dict[str, Any], kind: str, way: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the speed of a way over that of no proposals, by prompt."""
    if way == "none":
        return np.ones(len(_prompts(runs, kind)))
    found = {prompt: runs[f"{kind}/{prompt}/{way}"] for prompt in _prompts(runs, kind)}
    return np.array([_plain(runs, kind, i) * run["tokens"] / run["milliseconds"] for i, run in found.items()])


def _mean(ratios: np.ndarray[Any, np.dtype[np.float64]]) -> Interval:
    """Return the geometric mean with the interval over prompts."""
    logs = np.log(ratios)
    sums = resampled_sums(logs[:, None])[:, 0]
    return bootstrapped(float(np.exp(logs.mean())), np.exp(sums / len(logs)), len(logs))


def _loss(runs: dict[str, Any], key: str) -> tuple[float, int]:
    """Return what an answer's steps with proposals lost at most, one after another, and within how many tokens."""
    kind, prompt, _ = key.split("/")
    plain, worst, before = _plain(runs, kind, prompt), (0.0, 0), [(0.0, 0)]
    gain, tokens = 0.0, 0
    for drafted, emitted, milliseconds in runs[key]["steps"]:
        tokens += emitted
        if drafted:
            gain += emitted - milliseconds / plain
            top, at = max(before, key=lambda each: each[0])
            worst = max(worst, (top - gain, tokens - at))
        before.append((gain, tokens))
    return worst


TIMED = "Qwen2.5-Coder-1.5B"
LOOKED_UP = {"`suffix`": "`suffix`", "`ngram`": "`ngram`", "llama-cpp-python's prompt lookup": "llama-cpp-python's"}
BUILDS = {"one thread, `AVX2`": "never_slower", "two threads, `AVX-512`": "never_slower_native"}


def _look_ups() -> str:
    """Return what look-ups bring on given answers: kept per step, proposed per kept, and speed by measured passes."""
    times = {build: PassTimes.from_dict(read(file, "times"), file) for build, file in BUILDS.items()}
    rows = []
    for model, looked_up in read("look_ups").items():
        for kind in looked_up["`ngram`"]:
            for name, title in LOOKED_UP.items():
                counts = looked_up[name][kind]
                cells = [f"{counts['accepted'] / counts['steps']:.2f}"]
                cells.append(f"{counts['proposed'] / max(counts['accepted'], 1):.1f}")
                if model == TIMED:
                    cells += [f"{_speed_of(counts, each):.2f}" for each in times.values()]
                rows.append([model.rpartition("-")[2], kind, title, *cells, *[""] * (4 - len(cells))])
    head = ["", "", "look-up", "kept per step", "proposed per kept", *(f"speed, {build}" for build in BUILDS)]
    return table(head, rows)


def _builds() -> str:
    """Return what passes cost with each build of llama.cpp, and how many of one token's they are."""
    every = read("builds")
    names = {name: "`AVX-512`" if "AVX512" in name else "`AVX2`" for name in every}
    rows = [
        [names[name], *(f"{taken:.0f} ({taken / found['1']:.1f})" for taken in found.values())]
        for name, found in every.items()
    ]
    return table(["built for", *next(iter(every.values()))], rows)


def _self_drafts() -> str:
    """Return what drafts from targets themselves bring at their best number of proposals."""
    rows = []
    for name, found in read("self_drafts").items():
        for each in found["rows"]:
            value, low, high = each["speedup"]
            cells = [f"{each[key]:.2f}" if key in each else "" for key in ("cost", "acceptance")]
            draft = "the chosen `skip`" if each["draft"] == found["chosen"] else f"`{_short(each['draft'])}`"
            speed = f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f} to {high:.2f})"
            pays = "yes" if value >= 1.05 else "no"
            rows.append(
                [
                    name.replace("-", " "),  # a narrow screen would break a hyphen
                    draft,
                    *cells,
                    f"{each['num_speculative_tokens']}",
                    f"{each['tokens_per_step']:.2f}",
                    speed,
                    pays,
                ]
            )
    head = [
        "target",
        "draft",
        "cost of a draft token",
        "kept",
        "proposals",
        "tokens per step",
        "forecast speed",
        "pays",
    ]
    return table(head, rows)


def _short(draft: str) -> str:
    return draft if len(draft) < 40 else f"{draft[:36]} …"


def _speed_of(counts: dict[str, int], times: PassTimes) -> float:
    """Return the speed of steps whose passes are counted by width, over that of one token a pass."""
    widths = {int(key.rpartition(" ")[2]): count for key, count in counts.items() if key.startswith("passes over ")}
    taken = sum(count * times.of(width) for width, count in widths.items())
    return (counts["steps"] + counts["accepted"]) * times.of(1) / taken


TABLES: dict[str, Callable[[], str]] = {
    "auto": _auto,
    "long_prompts": _long_prompts,
    "load": _load,
    "fixed": _fixed,
    "fixed_native": partial(_fixed, "never_slower_native"),
    "forecast": _forecast,
    "look_ups": _look_ups,
    "builds": _builds,
    "self_drafts": _self_drafts,
}
