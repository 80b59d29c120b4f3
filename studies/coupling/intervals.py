"""How wide the interval of a score difference is, with shared noise and without.

    cactus eval --task word_problems:split=validation,seed=17 --problems 200 --rule lossless --rule clamped:width=1 \
        --rule clamped:width=2 --rule clamped:width=3 --num-speculative-tokens 8 --no-audit --output coupled.jsonl
    python -m studies.coupling.intervals --problems 200 coupled.jsonl studies/relaxing/results/plain-chosen.jsonl.gz
    python -m studies.coupling.intervals --problems 1000 studies/relaxing/results/plain-tuned.jsonl.gz

The files are results of `cactus eval`, in which the same problems are answered coupled and by token (the study
`relaxing` has answers by token). Each seed is looked at by itself, as somebody would who had answered with it alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.runs.summary import summarise
from studies.stored import read_results

RESULT = Path(__file__).parent / "results" / "intervals.json"


def widths(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return a row for each relaxed setting: its differences to lossless, one for each seed."""
    rows: dict[tuple[str, str, int | str], dict[str, list[float]]] = {}
    for seed in sorted({result.config.seed for result in results}):
        for summary in summarise(result for result in results if result.config.seed == seed):
            if summary.config.rule == "lossless" or summary.baseline is None:
                continue
            difference = summary.known("score_difference")
            differs = summary.group.columns["right"] != summary.baseline.columns["right"]
            how = summary.config.request.verification
            row = rows.setdefault((summary.config.rule, how, summary.config.num_speculative_tokens), {})
            row.setdefault("score_difference", []).append(difference.value)
            row.setdefault("half_width", []).append((difference.high - difference.low) / 2)
            row.setdefault("problems_that_differ", []).append(float(differs.mean()))
    return [
        {"rule": rule, "verification": how, "proposals": length, "mean_half_width": round(mean(row["half_width"]), 4)}
        | {name: [round(each, 4) for each in values] for name, values in row.items()}
        for (rule, how, length), row in rows.items()
    ]


def lossless_that_differ(results: Sequence[RunResult]) -> list[float]:
    """Return the share of problems that two lossless runs of one seed judge differently, for each pair of lengths."""
    lossless = [result for result in results if result.config.rule == "lossless"]
    pairs = [
        (first, second)
        for first, second in combinations(lossless, 2)
        if first.config.seed == second.config.seed and first.config.coupled == second.config.coupled
    ]
    return [round(float((one.column("right") != two.column("right")).mean()), 4) for one, two in pairs]


def same_problems(results: Iterable[RunResult]) -> list[RunResult]:
    """Return results cut to the problems, at their beginning, that all of them have answered."""
    found = list(results)
    count = min(result.config.problems for result in found)
    cut = [
        replace(result, config=replace(result.config, problems=count),
                answers={name: values[:count] for name, values in result.answers.items()})
        for result in found
    ]  # fmt: skip
    if any(result.answers["id"] != cut[0].answers["id"] for result in cut):
        raise ValueError("the files hold answers to different problems")
    return cut


def main() -> None:
    """Write what the files say of each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--problems", type=int, default=1, help="leave out runs of fewer")
    given = parser.parse_args()
    plain = [path.with_suffix("") if path.suffix == ".gz" else path for path in given.files]
    results = [each for path in plain for each in read_results(path) if each.config.problems >= given.problems]
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for target in dict.fromkeys(result.config.target for result in results):
        ours = [each for each in results if each.config.target == target and each.config.request.policy.everywhere]
        ours = same_problems(each for each in ours if each.config.request.budget is None)
        config = ours[0].config
        commits = sorted({str(result.provenance.get("commit")) for result in ours})
        found[f"{config.target} + {config.draft}, {config.task}"] = {
            "problems": config.problems,
            "seeds": sorted({result.config.seed for result in ours}),
            "rows": widths(ours),
            "lossless_lengths_that_differ": lossless_that_differ(ours),
            "answered_at": commits,
            "provenance": provenance({"files": [path.name for path in given.files]}),
        }
    write_atomically(RESULT, json.dumps(found, indent=1) + "\n")
    for name, each in found.items():
        print(name, each["problems"])
        for row in each["rows"]:
            print(
                f"  {row['rule']} {row['verification']} ×{row['proposals']}: ±{100 * row['mean_half_width']:.1f} points"
            )


if __name__ == "__main__":
    main()
