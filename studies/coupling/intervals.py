"""How wide the interval of a score difference is, with shared noise and without.

    cactus eval --task word_problems:split=validation,seed=17 --problems 200 --rule lossless --rule clamped:width=1 \
        --rule clamped:width=2 --rule clamped:width=3 --num-speculative-tokens 8 --no-audit --output coupled.jsonl
    python -m studies.coupling.intervals --problems 200 coupled.jsonl studies/relaxing/results/plain-chosen.jsonl.gz
    python -m studies.coupling.intervals --problems 1000 studies/relaxing/results/plain-tuned.jsonl.gz

The files are results of `cactus eval`, in which the same problems are answered coupled and by token (the study
`relaxing` has answers by token). Each seed is looked at by itself, as somebody would who had answered with it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.runs.summary import summarise
from scripts.results import asked, parse, read, write
from studies.stored import read_results

RESULTS = Path(__file__).parent / "results" / "intervals.json"


def widths(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return a row for each relaxed setting: its differences to lossless, one for each seed."""
    names = ("score_difference", "half_width", "problems_that_differ")
    rows: dict[tuple[str, str, int | str], list[tuple[float, ...]]] = {}
    for seed in sorted({result.config.seed for result in results}):
        for summary in summarise(result for result in results if result.config.seed == seed):
            if summary.config.rule == "lossless" or summary.baseline is None:
                continue
            value, low, high = summary.known("score_difference")
            differs = summary.group.columns["right"] != summary.baseline.columns["right"]
            how, length = summary.config.request.verification, summary.config.num_speculative_tokens
            row = rows.setdefault((summary.config.rule, how, length), [])
            row.append((value, (high - low) / 2, float(differs.mean())))
    found = []
    for (rule, how, length), row in rows.items():
        columns = dict(zip(names, zip(*row, strict=True), strict=True))
        means = {"mean_half_width": round(mean(columns["half_width"]), 4)}
        each_seed = {name: [round(each, 4) for each in values] for name, values in columns.items()}
        found.append({"rule": rule, "verification": how, "proposals": length} | means | each_seed)
    return found


def lossless_that_differ(results: Sequence[RunResult]) -> list[float]:
    """Return the share of problems that two lossless runs of one seed judge differently, for each pair of lengths."""
    lossless = [result for result in results if result.config.rule == "lossless"]
    return [
        round(float((one.column("right") != two.column("right")).mean()), 4)
        for one, two in combinations(lossless, 2)
        if (one.config.seed, one.config.coupled) == (two.config.seed, two.config.coupled)
    ]


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
    given = parse(
        __doc__, files=([Path], {"positional": True}), problems=(1, "leave out runs of fewer"), results=RESULTS
    )
    plain = [path.with_suffix("") if path.suffix == ".gz" else path for path in given.files]
    results = [each for path in plain for each in read_results(path) if each.config.problems >= given.problems]
    stored = read(given.results) if given.results.exists() else {}
    for target in dict.fromkeys(result.config.target for result in results):
        ours = [each for each in results if each.config.target == target and each.config.request.policy.everywhere]
        ours = same_problems(each for each in ours if each.config.request.budget is None)
        config, rows = ours[0].config, widths(ours)
        stored[f"{config.target} + {config.draft}, {config.task}"] = {
            "problems": config.problems,
            "seeds": sorted({result.config.seed for result in ours}),
            "rows": rows,
            "lossless_lengths_that_differ": lossless_that_differ(ours),
            "answered_at": sorted({str(result.provenance.get("commit")) for result in ours}),
            "provenance": provenance(asked(given)),
        }
        for row in rows:
            name = f"{row['rule']} {row['verification']} ×{row['proposals']}"
            print(f"{config.task}, {config.problems} problems, {name}: ±{100 * row['mean_half_width']:.1f} points")
    write(given.results, stored, None)


if __name__ == "__main__":
    main()
