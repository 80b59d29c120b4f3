"""Tables of the study of a real pair, from its result files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
SETS = {"": "nothing", "digits": "digits", "numbers_and_operators": "digits, operators", "code": "code symbols"}
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
    return {
        "rules": columns([points["plain", rule, "", "all"] for rule in MAIN], {
            "rule": "`{rule}`", "acceptance": lambda one: with_ends(one["acceptance"], 3), "nats a position": _nats,
            **{f"×{length}": _steps_cell(length) for length in LENGTHS},
        }),
        "protected": crossed(
            "rule", _spelled(GUARDED), _sets({protect for _, _, protect, _ in points}),
            lambda rule, name: _steps_and_nats(points["plain", rule, name, "all"], 4),
        ),
        "tasks": _tasks(points, rejections),
        "classes": columns(_by_rejection(rejections[-1]), {
            "class": "{0}", "what the target writes": "{1:.1f} %", "what is rejected": "{2:.1f} %",
            "what is written in its place": "{3:.1f} %",
        }),
        "samplings": crossed(
            "rule", _spelled(("lossless", "clamped:width=1.0", "clamped:width=2.0", "cactus:delta=1.0")),
            {f"{title}: acceptance; tokens a step of 7; nats": name for name, title in SAMPLINGS.items()},
            lambda rule, sampling: _sampled(points[sampling, rule, "", "all"]),
        ),
        "time": crossed(
            "rule", _spelled(TIMED), curves(), lambda rule, curve: _best(points["plain", rule, "", "all"], curve)
        ),
        "checks": _checks(result),
        "answers": _answers(summary for results in answered for summary in summarise(results)),
        "real_pair.csv": _all(points),
    }  # fmt: skip


def crossed(
    corner: str, rows: Mapping[str, Any], columns: Mapping[str, Any], cell: Callable[[Any, Any], object]
) -> str:
    """Return a table with a line for each row, and what a row and a column have in common in its cells."""
    lines = ([name, *(cell(row, column) for column in columns.values())] for name, row in rows.items())
    return table([corner, *columns], lines)


def choices(result: Mapping[str, Any]) -> str:
    """Return the table of the page on choosing a rule: tokens a step of 7, and nats a position in brackets."""
    points, asked = points_of(result), {SAMPLINGS["plain"]: ("plain", ""), "digits protected": ("plain", "digits")}
    asked[SAMPLINGS["paper"]] = ("paper", "")

    def cell(rule: str, how: tuple[str, str]) -> str:
        return _steps_and_nats(points[how[0], rule, "" if rule == "lossless" else how[1], "all"], 3)

    return crossed("tokens per step with 7 proposals (nats per position)", _spelled(TIMED), asked, cell)


def _spelled(rules: Iterable[str]) -> dict[str, str]:
    return {f"`{rule}`": rule for rule in rules}


def _of_seven(point: Point) -> float:
    return float(point["tokens_per_step"][LENGTHS.index(SEVEN)][0])


def _steps_cell(length: int) -> Cell:
    """Show tokens per step of a length; those of 7 have their interval."""
    place, ends = LENGTHS.index(length), 3 if length == SEVEN else 1
    return lambda point: with_ends([*point["tokens_per_step"][place][:ends], None, None][:3], 2)


def _nats(point: Point) -> str:
    """Return nats a position with their interval; lossless spends none."""
    return "0" if point["rule"] == "lossless" else with_ends(point["kl"], 4)


def _percent(interval: Sequence[Any]) -> str:
    return with_ends(interval, 0, 100) + " %"


def _steps_and_nats(point: Point, digits: int) -> str:
    return f"{_of_seven(point):.2f} ({point['kl'][0]:.{digits}f})"


def _sets(protected: Container[str]) -> dict[str, str]:
    """Return the sets of tokens that were protected, by their titles."""
    return {title: name for name, title in SETS.items() if name in protected}


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


def _by_rejection(found: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return classes with their shares in per cent, those that are rejected most first."""
    ordered = sorted(found["classes"].items(), key=lambda item: -item[1][1])
    return [(name, *(100 * share for share in shares)) for name, shares in ordered]


def _sampled(point: Point) -> str:
    return "; ".join([with_ends(point["acceptance"], 3), str(_steps_cell(SEVEN)(point)), _nats(point)])


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


def _best(point: Point, curve: tuple[Mapping[int, float], float]) -> str:
    """Return the least time of a token, and the number of proposals that takes it."""
    passes, draft = curve
    steps = zip(LENGTHS, point["tokens_per_step"], strict=True)
    taken, best = min(((passes[k + 1] + k * draft) / each[0], k) for k, each in steps)
    return f"{taken:.2f} ({best})"


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
