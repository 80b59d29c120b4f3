"""The tables of what rules bring in vLLM on a pair of models: docs/vllm.md and docs/performance.md have them.

python scripts/performance_tables.py writes them, from what `benchmarks/vllm_table.py` measured, and from answers of
`cactus eval` to a server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from pages import ROOT, table, with_ends

from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise

if str(ROOT) not in sys.path:  # scripts are run from their own folder
    sys.path.append(str(ROOT))

from studies.stored import read_results

RESULTS = ROOT / "docs" / "results"
FILE, STEPS = RESULTS / "vllm_real_pair.json", RESULTS / "vllm_tokens_per_step.json"
SCORES = {
    "GSM8K": ("vllm_scores_gsm8k.jsonl", "vllm_scores_gsm8k_75_to_120.jsonl"),
    "HumanEval": ("vllm_scores_humaneval.jsonl",),
}
"""Files in `RESULTS`, kept compressed; several of a task hold one part of its problems each."""
NO_DRAFT, LOSSLESS = "no draft", "lossless"
SAMPLINGS = {"plain": "temperature 1", "paper": "the Cactus paper's"}
LOOPS = {"vllm": "vLLM", "transformers": "this package's loop"}
Row = Mapping[str, Any]
Summary = Mapping[str, Any]


def in_short(found: Summary) -> str:
    """Return each rule at its best number of proposals over no draft, with a column for each load."""
    best = [row for row in found["best"] if row["loop"] == "vllm"]
    loads = sorted({row["at_once"] for row in best})

    def cells(rule: str, sampling: str) -> list[str]:
        rows = {row["at_once"]: row for row in best if (row["rule"], row["sampling"]) == (rule, sampling)}
        return [_over(rows[load]) if load in rows else "" for load in loads]

    head = ["sampling", "decoding", *(f"{load} at once" for load in loads)]
    ways = dict.fromkeys((row["sampling"], row["rule"]) for row in best)
    return table(head, [[SAMPLINGS[name], rule, *cells(rule, name)] for name, rule in ways], names=2)


def _over(row: Row) -> str:
    if row["rule"] == NO_DRAFT:
        return f"{row['tokens_per_second'][0]:.1f} tokens/s"
    return f"{_ends(row, 'over_no_draft')}, {_drafted(row)}" if "over_no_draft" in row else ""


def _ends(row: Row, name: str, digits: int = 2) -> str:
    return with_ends(row[name], digits) if row.get(name) and row[name][0] is not None else ""


def _drafted(row: Row) -> str:
    return f"{row['proposals']} {row['drafting']}" if row["proposals"] else ""


def at_best(found: Summary) -> str:
    """Return each rule at its best number of proposals, with everything that is known of it."""
    head = ["loop", "sampling", "at once", "decoding", "proposals", "tokens/s", "÷ no draft", "÷ lossless",
            "tokens per step", "seconds per answer", "÷ lossless's", "tokens per answer", "cut"]  # fmt: skip
    rows = [
        [
            LOOPS[row["loop"]], SAMPLINGS[row["sampling"]], row["at_once"], row["rule"], _drafted(row),
            _ends(row, "tokens_per_second", 1), _ends(row, "over_no_draft"), _ends(row, "over_lossless"),
            f"{row['tokens_per_step'][0]:.2f}" if row["tokens_per_step"] else "",
            _ends(row, "seconds_per_answer", 1), _ends(row, "time_over_lossless"),
            f"{row['tokens_per_answer'][0]:.0f}", f"{100 * row['cut']:.0f} %",
        ]
        for row in _in_order(found["best"])
    ]  # fmt: skip
    return table(head, rows, names=2)


def by_number(found: Summary) -> str:
    """Return tokens per second over no draft, with a column for each number of proposals."""
    cells = [row for row in found["cells"] if row["rule"] != NO_DRAFT]
    counts = sorted({row["proposals"] for row in cells})
    ways: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in _in_order(cells):
        way = row["loop"], row["sampling"], row["at_once"], row["drafting"], row["rule"]
        ways.setdefault(way, {})[row["proposals"]] = row

    def shown(rows: Mapping[int, Row]) -> Iterable[str]:
        known = (rows.get(count, {}).get("over_no_draft") for count in counts)
        return ["" if each is None or each[0] is None else f"{each[0]:.2f}" for each in known]

    head = ["loop", "sampling", "drafts", "decoding", "at once", *counts]
    return table(
        head,
        [
            [LOOPS[loop], SAMPLINGS[sampling], drafting, rule, load, *shown(rows)]
            for (loop, sampling, load, drafting, rule), rows in ways.items()
        ],
        names=4,
    )


def tokens_per_step(found: Summary) -> str:
    """Return tokens per step by number of proposals, of drafts that are drawn and of likeliest ones."""
    rows = [row for row in found["cells"] if row["proposals"]]
    ways: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in sorted(rows, key=lambda row: ([*SAMPLINGS].index(row["sampling"]), row["drafting"])):
        way = row["sampling"], row["rule"], row["drafting"]
        ways.setdefault(way, {})[row["proposals"]] = _ends(row, "tokens_per_step")
    counts = sorted({row["proposals"] for row in rows})
    head = ["sampling", "decoding", "drafts", *counts]
    shown = [[SAMPLINGS[way[0]], *way[1:], *(cells.get(count, "") for count in counts)] for way, cells in ways.items()]
    return table(head, shown, names=3)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    samplings, loops = [*SAMPLINGS], [*LOOPS]
    return sorted(rows, key=lambda row: (loops.index(row["loop"]), samplings.index(row["sampling"]), row["at_once"]))


def scores() -> str:
    """Return right answers, length and time of each setting beside lossless at its fastest."""
    parts = {task: [read_results(RESULTS / name) for name in names] for task, names in SCORES.items()}
    rows = [[task, *_scored(each)] for task, some in parts.items() for each in summarise(joined(some))]
    head = ["task", "sampling", "rule", "proposals", "right, %", "difference, points", "cut, %", "tokens per answer",
            "÷ lossless's", "seconds per answer", "÷ lossless's", "tokens per step"]  # fmt: skip
    return table(head, rows, names=3)


def joined(parts: Sequence[Sequence[RunResult]]) -> list[RunResult]:
    """Return runs whose problems were asked in parts as one run each; provenance, and so the machine, is the first's.

    Ratios of times pair the answers to a problem, which one machine gave. Parts of unlike runs raise `ValueError`.
    """
    found = []
    for some in zip(*parts, strict=True):
        first, problems = some[0], [each.config.problems for each in some]
        if any(replace(each.config, problems=0) != replace(first.config, problems=0) for each in some):
            raise ValueError(f"these parts are not of one run: {', '.join(each.config.key for each in some)}")
        columns = {name: [*chain.from_iterable(each.answers[name] for each in some)] for name in first.answers}
        columns["id"] = [str(number) for number in range(1, sum(problems) + 1)]
        found.append(RunResult(replace(first.config, problems=sum(problems)), columns, first.provenance))
    return found


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


def _measured(made: Callable[[Summary], str], file: Path = FILE) -> Callable[[], str]:
    def shown() -> str:
        return made(json.loads(file.read_text())["summary"]["all"])

    return shown


TABLES = {
    "vllm_pair": _measured(in_short),
    "vllm_pair_best": _measured(at_best),
    "vllm_pair_numbers": _measured(by_number),
    "vllm_pair_steps": _measured(tokens_per_step, STEPS),
    "vllm_pair_scores": scores,
}
