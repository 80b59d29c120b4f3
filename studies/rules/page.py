"""Tables and pictures of the study, from its result files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cactus_decoding.lab.evaluation.intervals import (
    Interval,
    bootstrapped,
    clustered_proportion,
    paired_difference,
    resampled_sums,
)
from cactus_decoding.lab.evaluation.runs.summary import RunGroup, RunSummary, summarise
from cactus_decoding.lab.reporting import charts
from cactus_decoding.lab.reporting.report import escape, name_of, number
from scripts.pages import columns
from scripts.pages import table as as_table
from scripts.results import read
from studies.stored import read_results

ONE_SIGMA = 0.158655
"""Of a normal distribution this much lies above one standard deviation."""
QUALITY = (
    ("score", "score", 3),
    ("score_difference", "score − best lossless", 3),
    ("acceptance_rate", "acceptance rate", 3),
    ("acceptance_length", "acceptance_length", 2),
    ("rejections_ratio", "rejections ÷ lossless", 2),
    ("nats_per_token", "nats per token", 4),
    ("tv_per_position", "TV per position", 3),
    ("max_likelihood_ratio", "largest ratio", 1),
)
COST = (
    ("length_ratio", "length ratio", 3),
    ("steps_per_answer", "steps per answer", 1),
    ("seconds_ratio_to_target_alone", "wall time ÷ target alone", 3),
    ("seconds_ratio", "wall time ÷ best lossless", 3),
    ("tokens_per_second", "tokens per second", 0),
    ("truncated", "truncated", 3),
)

BRIEF = (*QUALITY[:2], QUALITY[3], QUALITY[5], *COST[:4])


def shown(folder: Path, samplings: Sequence[str]) -> dict[str, str]:
    """Return the tables and pictures; raises `OSError` where a result file is missing."""
    found = {}
    for sampling in samplings:
        main, tuned, others = _groups(summarise(read_results(folder / f"{sampling}.jsonl")))
        matched = read(folder / f"matched-{sampling}.json")["matched"]
        drafts = {"draft bundled": main} | {f"draft {draft}": summaries for draft, summaries in others.items()}
        tables = (f"Draft `{draft}`:\n\n{table(summaries, BRIEF)}" for draft, summaries in others.items())
        found |= {
            f"matched {sampling}": _matched(matched),
            f"quality {sampling}": table(main, QUALITY),
            f"cost {sampling}": table(main, COST),
            f"paired {sampling}": _paired(main, matched["bundled:draft"]),
            f"tuned {sampling}": table(tuned, BRIEF),
            f"others {sampling}": "\n\n".join(tables),
            f"pictures/rules/{sampling}-score.svg": charts.score_picture(main, sigma_band(main), "±1 sigma"),
            f"pictures/rules/{sampling}-nats.svg": charts.nats_picture(main),
            f"pictures/rules/{sampling}-time.svg": charts.time_picture(drafts),
        }
    return found


def sigma_band(summaries: Sequence[RunSummary]) -> Interval | None:
    """Return the target's own score and the ends of its exact 68 % interval; None where it was not measured alone."""
    for summary in summaries:
        score = summary.metrics["score"]
        if summary.config.num_speculative_tokens == 0 and score is not None:
            return clustered_proportion(summary.group.columns["right"], len(summary.group.results), tail=ONE_SIGMA)
    return None


def _groups(summaries: Sequence[RunSummary]) -> tuple[list[RunSummary], list[RunSummary], dict[str, list[RunSummary]]]:
    """Return the summaries of the main part, of that in which relaxed rules have other lengths, of other drafts."""
    groups: dict[tuple[str, int], list[RunSummary]] = {}
    for summary in summaries:
        groups.setdefault((summary.config.draft, summary.config.problems), []).append(summary)
    bundled = sorted((problems for draft, problems in groups if draft == "bundled:draft"), reverse=True)
    others = {draft: found for (draft, _), found in groups.items() if draft != "bundled:draft"}
    return groups["bundled:draft", bundled[0]], groups["bundled:draft", bundled[-1]], others


def table(summaries: Sequence[RunSummary], shown: Sequence[tuple[str, str, int]]) -> str:
    """Return a line for each summary, and a column for each metric with its title and digits."""

    def name(summary: RunSummary) -> str:
        return escape("target alone" if summary.config.num_speculative_tokens == 0 else name_of(summary))

    metrics = [
        (title, lambda summary, metric=metric, digits=digits: number(summary.metrics[metric], digits))
        for metric, title, digits in shown
    ]
    return columns(summaries, [("setting", name), *metrics])


def _paired(summaries: Sequence[RunSummary], matched: dict[str, dict[str, object]]) -> str:
    """Return questions that take two settings each, answered problem by problem."""
    found = {(summary.config.rule, summary.config.num_speculative_tokens): summary.group for summary in summaries}
    baseline = summaries[0].baseline
    assert baseline is not None
    best = int(baseline.config.num_speculative_tokens)
    asked = [("lossless", 10, "lossless", best)]
    for length in (10, 20):
        asked += [(rule, length, "lossless", length) for rule in ("typical", "cactus:delta=1.0")]
        asked.append(("cactus:delta=1.0", length, "lossless", best))
    for rule, width in ((rule, found_width["width"]) for rule, found_width in matched.items()):
        asked.append((f"clamped:width={width!r}", 10, rule, 10))
    asked += [(f"clamped:width={matched['cactus:delta=1.0']['width']!r}", 20, "cactus:delta=1.0", 20)]
    asked += [("cactus:delta=1.0,solver=exact", length, "cactus:delta=1.0", length) for length in (10, 20)]
    rows = []
    for rule, length, other, other_length in dict.fromkeys(asked):
        first, second = found[rule, length], found[other, other_length]
        names = (f"`{text}` ×{count}" for text, count in ((rule, length), (other, other_length)))
        rows.append([*names, *(number(each, 3) for each in compared(first, second))])
    head = "first", "second", "score: first − second", "wall time: first ÷ second", "steps: ratio", "nats: ratio"
    return as_table(head, rows, names=2)


def compared(first: RunGroup, second: RunGroup) -> Iterator[Interval | None]:
    """Yield the difference of scores, and the ratios of wall times, steps and nats, paired by problem."""
    columns = [setting.columns[name] for name in ("right", "seconds", "steps", "nats") for setting in (first, second)]
    table = np.stack(columns, axis=1)
    spread, total = resampled_sums(table), table.sum(0)
    yield paired_difference(table[:, 0] - table[:, 1], min(len(setting.results) for setting in (first, second)))
    for place in (2, 4, 6):
        if total[place + 1] > 0:
            ratios = spread[:, place] / spread[:, place + 1]
            yield bootstrapped(total[place] / total[place + 1], ratios, len(first.ids))
        else:
            yield None


def _matched(matched: dict[str, dict[str, dict[str, dict[str, object]]]]) -> str:
    """Return what rules cost at equal acceptance, exactly, at the validation positions of a lossless run."""
    rows = []
    for draft, by_rule in matched.items():
        for rule, found in by_rule.items():
            mine, clamped = (
                [f"{_first(found[side], 'acceptance'):.3f}", f"{_first(found[side], 'kl'):.4f}"]
                for side in ("rule", "clamped")
            )
            rows.append([f"`{draft}`", f"`{rule}`", *mine, f"`clamped:width={found['width']}`", *clamped])
    head = "draft", "rule", "acceptance", "KL, nats", "clamped ratio", "acceptance", "KL, nats"
    return as_table(head, rows, names=2)


def _first(point: dict[str, object], name: str) -> float:
    value = point[name]
    assert isinstance(value, list)
    return float("inf") if value[0] is None else float(value[0])
