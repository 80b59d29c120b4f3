"""The tables of what rules bring in vLLM on a pair of models: docs/vllm.md and docs/performance.md have them.

python scripts/performance_tables.py writes them, from what `benchmarks/vllm_table.py` measured, and from answers of
`cactus eval` to a server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pages import ROOT, table, with_ends

from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise

if str(ROOT) not in sys.path:  # scripts are run from their own folder
    sys.path.append(str(ROOT))

from studies.stored import read_results

FILES = {
    "AMD": ROOT / "docs" / "results" / "vllm_real_pair.json",
    "Intel": ROOT / "docs" / "results" / "vllm_real_pair_slow_memory.json",
}
"""The same pair on two machines, each by the maker of its processor."""
SCORES = {
    "GSM8K": ROOT / "docs" / "results" / "vllm_scores_gsm8k.jsonl",
    "HumanEval": ROOT / "docs" / "results" / "vllm_scores_humaneval.jsonl",
}
"""Kept compressed."""
NOT_MEASURED = "*Not measured yet.*"
NO_DRAFT, LOSSLESS = "no draft", "lossless"
SAMPLINGS = {"plain": "temperature 1", "paper": "the Cactus paper's"}
LOOPS = {"vllm": "vLLM", "transformers": "this package's loop"}
Row = Mapping[str, Any]
Summaries = Mapping[str, Mapping[str, Any]]
"""By machine."""
LOADS = (1, 8)


def in_short(found: Summaries) -> str:
    """Return each rule at its best number of proposals over no draft, with a column for each machine and load."""
    best = _rows(found, "best", loop="vllm")
    columns = [(machine, load) for machine in found for load in LOADS]

    def cells(rule: str, sampling: str) -> list[str]:
        rows = {(machine, row["at_once"]): row
                for machine, row in best if (row["rule"], row["sampling"]) == (rule, sampling)}  # fmt: skip
        return [_over(rows[column]) if column in rows else "" for column in columns]

    head = ["sampling", "decoding", *(f"{machine}, {load} at once" for machine, load in columns)]
    ways = dict.fromkeys((row["sampling"], row["rule"]) for _, row in best)
    return table(head, [[SAMPLINGS[name], rule, *cells(rule, name)] for name, rule in ways], names=2)


def _rows(found: Summaries, part: str, **only: Any) -> list[tuple[str, Row]]:
    """Return rows with their machine, in the order in which they are shown."""
    samplings, loops = [*SAMPLINGS], [*LOOPS]
    return [
        (machine, row)
        for machine, summary in found.items()
        for row in sorted(summary[part], key=lambda row: (
            loops.index(row["loop"]), samplings.index(row["sampling"]), row["at_once"]
        ))
        if all(row[name] == value for name, value in only.items())
    ]  # fmt: skip


def _over(row: Row) -> str:
    if row["rule"] == NO_DRAFT:
        return f"{row['tokens_per_second'][0]:.1f} tokens/s"
    return f"{_ends(row, 'over_no_draft')}, {_drafted(row)}" if "over_no_draft" in row else ""


def _ends(row: Row, name: str, digits: int = 2) -> str:
    return with_ends(row[name], digits) if row.get(name) and row[name][0] is not None else ""


def _drafted(row: Row) -> str:
    return f"{row['proposals']} {row['drafting']}" if row["proposals"] else ""


def at_best(found: Summaries) -> str:
    """Return each rule at its best number of proposals, with everything that is known of it."""
    head = ["machine", "loop", "sampling", "at once", "decoding", "proposals", "tokens/s", "÷ no draft", "÷ lossless",
            "tokens per step", "seconds per answer", "÷ lossless's", "tokens per answer", "cut"]  # fmt: skip
    rows = [
        [
            machine, LOOPS[row["loop"]], SAMPLINGS[row["sampling"]], row["at_once"], row["rule"], _drafted(row),
            _ends(row, "tokens_per_second", 1), _ends(row, "over_no_draft"), _ends(row, "over_lossless"),
            f"{row['tokens_per_step'][0]:.2f}" if row["tokens_per_step"] else "",
            _ends(row, "seconds_per_answer", 1), _ends(row, "time_over_lossless"),
            f"{row['tokens_per_answer'][0]:.0f}", f"{100 * row['cut']:.0f} %",
        ]
        for machine, row in _rows(found, "best")
    ]  # fmt: skip
    return table(head, rows, names=3)


def by_number(found: Summaries) -> str:
    """Return tokens per second over no draft, with a column for each number of proposals."""
    cells = [each for each in _rows(found, "cells") if each[1]["rule"] != NO_DRAFT]
    counts = sorted({row["proposals"] for _, row in cells})
    ways: dict[tuple[Any, ...], dict[int, Row]] = {}
    for machine, row in cells:
        way = (machine, *(row[name] for name in ("loop", "sampling", "at_once", "drafting", "rule")))
        ways.setdefault(way, {})[row["proposals"]] = row

    def shown(rows: Mapping[int, Row]) -> Iterable[str]:
        known = (rows.get(count, {}).get("over_no_draft") for count in counts)
        return ["" if each is None or each[0] is None else f"{each[0]:.2f}" for each in known]

    head = ["machine", "loop", "sampling", "drafts", "decoding", "at once", *counts]
    return table(
        head,
        [
            [machine, LOOPS[loop], SAMPLINGS[sampling], drafting, rule, load, *shown(rows)]
            for (machine, loop, sampling, load, drafting, rule), rows in ways.items()
        ],
        names=5,
    )


def scores() -> str:
    """Return right answers, length and time of each setting beside lossless at its fastest."""
    there = {task: path for task, path in SCORES.items() if path.with_name(f"{path.name}.gz").exists()}
    rows = [[task, *_scored(each)] for task, path in there.items() for each in summarise(read_results(path))]
    head = ["task", "sampling", "rule", "proposals", "right, %", "difference, points", "cut, %", "tokens per answer",
            "÷ lossless's", "seconds per answer", "÷ lossless's", "tokens per step"]  # fmt: skip
    return table(head, rows, names=3) if rows else NOT_MEASURED


def _scored(found: RunSummary) -> list[str]:
    config = found.config
    figures = (("score", 0, 100), ("score_difference", 0, 100), ("truncated", 0, 100), ("tokens_per_answer", 0, 1),
               ("length_ratio", 2, 1), ("seconds_per_answer", 1, 1), ("seconds_ratio", 2, 1),
               ("acceptance_length", 2, 1))  # fmt: skip
    shown = [_known(found.metrics.get(name), digits, scale) for name, digits, scale in figures]
    sampling = SAMPLINGS["paper" if config.request.sampling.truncates else "plain"]
    policy = "" if config.request.policy.everywhere else f", {config.request.policy}"
    return [sampling, f"`{config.rule}`{policy}", str(config.num_speculative_tokens), *shown]


def _known(interval: Interval | None, digits: int, scale: float) -> str:
    return "" if interval is None else interval.shown(digits, scale=scale)


def _measured(made: Callable[[Summaries], str]) -> Callable[[], str]:
    def shown() -> str:
        found = {name: json.loads(file.read_text())["summary"]["all"] for name, file in FILES.items() if file.exists()}
        return made(found) if found else NOT_MEASURED

    return shown


TABLES = {
    "vllm_pair": _measured(in_short),
    "vllm_pair_best": _measured(at_best),
    "vllm_pair_numbers": _measured(by_number),
    "vllm_pair_scores": scores,
}
