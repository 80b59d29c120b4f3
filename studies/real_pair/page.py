"""Tables of the study of a real pair, from its result files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from scripts.pages import RESULTS as BENCHMARKS
from scripts.pages import Cell, columns, table, with_ends
from scripts.results import read
from studies.stored import read_results

RESULTS = Path(__file__).with_name("results")
TIMES = BENCHMARKS / "never_slower_long.json"
LENGTHS, SEVEN = (1, 3, 5, 7, 11, 15), 7
MAIN = ("lossless", "clamped:width=1.0", "clamped:width=2.0", "cactus:delta=1.0", "ensemble:weight=0.3", "typical")
GUARDED = ("clamped:width=2.0", "clamped:width=3.0", "cactus:delta=1.0")
TIMED = ("lossless", "clamped:width=2.0", "cactus:delta=1.0")
SHORT = {"lossless": "lossless", "clamped:width=2.0": "clamped, width 2", "cactus:delta=1.0": "Cactus, delta 1"}
"""Names in the heads of columns, which may break between words."""
TASKS = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "spec_bench": "Spec-Bench", "ifeval": "IFEval", "all": "all"}
SETS = {"": "nothing", "digits": "digits", "numbers_and_operators": "digits, operators", "code": "code symbols",
        "learned": "what is learned to matter"}  # fmt: skip
SAMPLINGS = {"plain": "temperature 1", "own": "0.7, top-p 0.8, top-k 20", "paper": "0.6, top-p 0.95, top-k 20"}
Point = Mapping[str, Any]
Points = Mapping[tuple[str, str, str, str], Point]
"""By sampling, rule, what is protected, and task."""


def points_of(result: Mapping[str, Any]) -> Points:
    return {
        (sampling, each["rule"], each["protect"], each["task"]): each
        for sampling, found in result["samplings"].items()
        for each in found
    }


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables, those of stored answers too."""
    answered = (read_results(each.with_suffix("")) for each in sorted(RESULTS.glob("answers_*.jsonl.gz")))
    points, rejections = points_of(result), result["rejections"]
    engines, trained = _read("engines"), _read("smollm2_training")
    ordered = sorted(result["categories"], key=lambda one: one["acceptance"]["lossless"])
    return {
        "rules": columns([points["plain", rule, "", "all"] for rule in MAIN], {
            "rule": "`{rule}`", "acceptance": lambda one: with_ends(one["acceptance"], 3), "nats a position": _nats,
            **{f"×{length}": _steps_cell(length) for length in LENGTHS},
        }),
        "protected": _protected(points),
        "tasks": _tasks(points, rejections),
        "rejections": _rejections(rejections),
        "classes": columns(_by_rejection(rejections[-1]), {
            "class": "{0}", "what the target writes": "{1:.1f} %", "what is rejected": "{2:.1f} %",
            "what is written in its place": "{3:.1f} %",
        }),
        "classes by task": _classes_by_task(rejections),
        "samplings": _samplings(points),
        "time": _time(points),
        "categories": columns(ordered, {
            "category": "{category}", "answers": "{answers}", "positions": "{positions}",
            **{SHORT[rule]: _accepts(rule) for rule in ("lossless", "clamped:width=2.0")},
        }),
        "checks": _checks(result),
        "children": _children(_read("children")["rules"]),
        "transformers": columns(engines["transformers"].items(), {
            "precision": lambda one: one[0].removeprefix("torch."),
            "texts that are `generate`'s": "{1[equal]} of {1[texts]}",
            "speed over its": "{1[ratio]:.2f}", "tokens a step": "{1[steps]:.2f}",
        }),
        "vllm": columns(engines["vllm"], {
            "rule": "`{rule}`", "answers": "{answers}", "tokens": "{tokens_per_answer:.1f}",
            "tokens a step": "{acceptance_length:.2f}",
        }),
        "trained": columns(trained["after"].items(), {
            "rule": "`{0}`", "tokens a step before": lambda one: with_ends(trained["before"][one[0]]["length"], 2),
            "after": lambda one: with_ends(one[1]["length"], 2),
            "acceptance after": lambda one: with_ends(one[1]["rate"], 2),
        }),
        "tuned": _tuned(_read("smollm2_profile")),
        "answers": _answers(summary for results in answered for summary in summarise(results)),
        "tables/real_pair.csv": _all(points),
    }  # fmt: skip


def choices(result: Mapping[str, Any]) -> str:
    """Return the table of the page on choosing a rule: tokens a step of 7, and nats a position in brackets."""
    points, rows = points_of(result), []
    for rule in TIMED:
        digits = "" if rule == "lossless" else "digits"
        found = (points[*key, "all"] for key in (("plain", rule, ""), ("plain", rule, digits), ("paper", rule, "")))
        rows.append([f"`{rule}`", *(f"{_of_seven(each):.2f} ({each['kl'][0]:.3f})" for each in found)])
    what = "tokens per step with 7 proposals (nats per position)"
    return table([what, SAMPLINGS["plain"], "digits protected", SAMPLINGS["paper"]], rows)


def _of_seven(point: Point) -> float:
    return float(point["tokens_per_step"][LENGTHS.index(SEVEN)][0])


def _steps_cell(length: int) -> Cell:
    """Show tokens per step of a length; those of 7 have their interval."""
    place, ends = LENGTHS.index(length), 3 if length == SEVEN else 1
    return lambda point: with_ends([*point["tokens_per_step"][place][:ends], None, None][:3], 2)


def _nats(point: Point) -> str:
    """Return nats a position with their interval; lossless spends none."""
    return "0" if point["rule"] == "lossless" else with_ends(point["kl"], 4)


def _accepts(rule: str) -> Cell:
    return lambda one: f"{one['acceptance'][rule]:.3f}"


def _percent(interval: Sequence[Any]) -> str:
    return with_ends(interval, 0, 100) + " %"


def _protected(points: Points) -> str:
    sets = [name for name in SETS if ("plain", GUARDED[0], name, "all") in points]
    rows = []
    for rule in GUARDED:
        found = (points["plain", rule, name, "all"] for name in sets)
        rows.append([f"`{rule}`", *(f"{_of_seven(each):.2f} ({each['kl'][0]:.4f})" for each in found)])
    return table(["rule", *(SETS[name] for name in sets)], rows)


def _tasks(points: Points, found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for each in found:
        of = [points["plain", rule, "", each["task"]] for rule in TIMED]
        digits = _percent(each["protected"]["digits"]["rejections"])
        counts = f"{each['answers']}, {each['positions']:,}"
        tokens = (f"{_of_seven(point):.2f}" for point in of)
        rows.append([TASKS[each["task"]], counts, with_ends(of[0]["acceptance"], 3), digits, *tokens])
    head = ["", "answers, positions", "lossless accepts", "rejects at digits", *(SHORT[rule] for rule in TIMED)]
    return table(head, rows)


def _answers(summaries: Iterable[RunSummary]) -> str:
    head = ["", "rule", "answers", "right, %", "against lossless, points", "tokens", "cut, %", "tokens a step"]
    figures = (("score", 0, 100), ("score_difference", 0, 100), ("tokens_per_answer", 0, 1), ("truncated", 0, 100),
               ("acceptance_length", 2, 1))  # fmt: skip
    rows = []
    for each in summaries:
        task = TASKS[each.config.task]
        task += f", {SAMPLINGS['paper']}" if each.config.request.sampling.truncates else ""
        rule, _, policy = each.config.label.partition(" ×")[0].partition(" ")
        cells = (each.known(name).shown(digits, scale=scale) for name, digits, scale in figures)
        rows.append([task, f"`{rule}` {policy}".strip(), str(len(each.group.ids)), *cells])
    return table(head, rows)


def _rejections(found: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in SETS if name in found[-1]["protected"]]
    rows = []
    for each in found:
        cells = (each["protected"][name] for name in names)
        shares = (f"{100 * cell['positions']:.0f} % / {_percent(cell['rejections'])}" for cell in cells)
        rows.append([TASKS[each["task"]], *shares])
    return table(["", *(f"{SETS[name]}: positions / rejections" for name in names)], rows)


def _by_rejection(found: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return classes with their shares in per cent, those that are rejected most first."""
    ordered = sorted(found["classes"].items(), key=lambda item: -item[1][1])
    return [(name, *(100 * share for share in shares)) for name, shares in ordered]


def _classes_by_task(found: Sequence[Mapping[str, Any]]) -> str:
    def both(task: Mapping[str, Any]) -> Cell:
        shares = {name: f"{written:.1f} / {rejected:.1f} %" for name, written, rejected, _ in _by_rejection(task)}
        return lambda each: shares[each[0]]

    heads = {f"{TASKS[each['task']]}: written / rejected": both(each) for each in found[:-1]}
    return columns(_by_rejection(found[-1]), {"class": "{0}", **heads})


def _samplings(points: Points) -> str:
    rows = []
    for rule in ("lossless", "clamped:width=1.0", "clamped:width=2.0", "cactus:delta=1.0"):
        found = (points[sampling, rule, "", "all"] for sampling in SAMPLINGS)
        cells = ((with_ends(each["acceptance"], 3), _steps_cell(SEVEN)(each), _nats(each)) for each in found)
        rows.append([f"`{rule}`", *("; ".join(cell) for cell in cells)])
    return table(["rule", *(f"{title}: acceptance; tokens a step of 7; nats" for title in SAMPLINGS.values())], rows)


def curves() -> dict[str, tuple[Mapping[int, float], float]]:
    """Return what a pass over each number of tokens and a token of the draft cost, in passes over one token."""
    times = read(TIMES)["times"]
    sizes, seconds = np.array(times["target"]).T
    measured = {size: float(np.interp(size, sizes, seconds) / seconds[0]) for size in range(1, 17)}
    flat = dict.fromkeys(range(1, 17), 1.0)
    return {
        "one CPU core, measured": (measured, times["draft"] / seconds[0]),
        "4B for 70B on TPUs": (flat, 1.8 / 14.1),
        "250M for 11B on a TPU": (flat, 0.04),
    }


def _time(points: Points) -> str:
    rows = []
    for rule in TIMED:
        tokens = [each[0] for each in points["plain", rule, "", "all"]["tokens_per_step"]]
        cells = []
        for passes, draft in curves().values():
            per_token = ((passes[k + 1] + k * draft) / each for k, each in zip(LENGTHS, tokens, strict=True))
            taken, best = min(zip(per_token, LENGTHS, strict=True))
            cells.append(f"{taken:.2f} ({best})")
        rows.append([f"`{rule}`", *cells])
    return table(["rule", *curves()], rows)


def _checks(result: Mapping[str, Any]) -> str:
    whole = result["whole_rows"]
    heads = {"rule": "`{0}`", "acceptance": "{1[most][0]:.1e}", "nats": "{1[most][1]:.1e}"}
    along = {"proposals": "{length}", "by acceptances": "{by_acceptance:.3f}", "exactly": "{exact:.3f}"}
    return "\n\n".join([
        f"Greatest difference from whole rows at {whole['positions']} positions (bound: {whole['tail']:g}):",
        columns(whole["rules"].items(), heads),
        "Tokens of a lossless step from any position:",
        columns(result["along_texts"], along),
    ])  # fmt: skip


def _children(rules: Mapping[str, Any]) -> str:
    """Return how often one of some children is kept, with one that is drawn and with fixed ones alone."""
    counts = (1, 2, 3, 4, 8)
    rows = (
        [f"`{rule}`", kind, *(f"{kept[count - 1][0]:.3f}" for count in counts)]
        for rule, kinds in rules.items()
        for kind, kept in kinds.items()
    )
    return table(["rule", "children", *counts], rows)


def _tuned(found: Mapping[str, Any]) -> str:
    """Return what ways of proposing would bring, by pass times and acceptance."""
    passes, [draft] = dict(found["times"]["target"]), found["drafts"]
    speeds = {(each["draft"], each["num_speculative_tokens"]): each for each in found["forecasts"]}
    rows = []
    for count in (0, 1, 2, 3, 4, 8, 15):
        ways = (speeds.get((name, count)) or speeds["suffix", 0] for name in ("suffix", draft["draft"]))
        cells = (f"{each['tokens_per_second']:.1f} ({each['tokens_per_step']:.2f})" for each in ways)
        rows.append([count, f"{1000 * passes[count + 1]:.0f}", *cells])
    head = ["proposals", "target's pass, ms", "look-up: tokens/s (a step)"]
    return table([*head, f"draft, {1000 * draft['seconds']:.1f} ms each"], rows)


def _read(name: str) -> Any:
    return read(RESULTS / f"{name}.json")


def _all(points: Points) -> str:
    """Return every number with the ends of its 95 % interval, as comma-separated values."""
    measured = ["acceptance", "nats", *(f"tokens_per_step_of_{length}" for length in LENGTHS)]
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(["sampling", "rule", "protected", "task",
                   *(f"{name}{end}" for name in measured for end in ("", "_low", "_high"))])  # fmt: skip
    for (sampling, rule, protect, task), each in points.items():
        numbers = (end for interval in (each["acceptance"], each["kl"], *each["tokens_per_step"]) for end in interval)
        rows.writerow([SAMPLINGS[sampling], rule, SETS[protect], TASKS[task],
                       *(f"{round(float(number), 4):g}" for number in numbers)])  # fmt: skip
    return written.getvalue()
