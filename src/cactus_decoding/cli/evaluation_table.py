"""How evaluations look on a terminal: a table for each task and pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.reporting.report import (
    COLUMNS,
    compared_with,
    length_warnings,
    mark_of,
    short_number,
    timing_warnings,
    verified_by,
)

if TYPE_CHECKING:
    from cactus_decoding.lab.evaluation.run_config import RunConfig
    from cactus_decoding.lab.evaluation.runs.results import RunResult
    from cactus_decoding.lab.evaluation.runs.summary import RunSummary

BRIEF = (
    ("score", "score", 3),
    ("acceptance_length", "tokens/\nstep", 2),
    ("tokens_per_answer", "tokens/\nanswer", 0),
    ("truncated", "cut,\n%", 0),
    ("seconds_per_answer", "seconds/\nanswer", 3),
    ("tokens_per_second", "tokens/\nsecond", 1),
)
"""What a row of a setting has room for: name of the metric, heading, digits. Intervals stand below."""

_TREE = "best lossless tree"
_LONG = 22  # characters of a label, for a table to fit into 80 columns


def table(summaries: Sequence[RunSummary], *, every_metric: bool = False) -> list[Table]:
    """Return a table for each task and pair: a row for each setting, or one for each of its metrics."""
    groups: dict[tuple[object, ...], list[RunSummary]] = {}
    for summary in summaries:
        config = summary.config
        same = config.task, config.problems, config.target, config.draft, config.answered_by, config.chat
        groups.setdefault(same, []).append(summary)
    return [(_every_metric if every_metric else _brief)(_title(group[0]), group) for group in groups.values()]


def _title(summary: RunSummary) -> str:
    config = summary.config
    how = "" if config.chat is None else f", {config.chat}"
    return f"{config.task}: {config.problems} problems, {config.target} with {config.draft}, {config.answered_by}{how}"


def _brief(title: str, summaries: Sequence[RunSummary]) -> Table:
    marks = dict.fromkeys(filter(None, map(mark_of, summaries)))
    starred = {mark: "**" if mark == _TREE and len(marks) > 1 else "*" for mark in marks}
    said = "".join(f"{star} {mark}; " for mark, star in sorted(starred.items(), key=lambda each: each[1]))
    how = f"{by} " if (by := verified_by(summaries)) else ""
    shown = _new(
        title,
        f"{how}{said}below numbers their 95 % intervals; cut: answers that reached the limit. More metrics: --all",
    )
    columns = [column for column in BRIEF if any(summary.metrics[column[0]] is not None for summary in summaries)]
    shown.add_column("setting", overflow="fold")
    for _, heading, _ in columns:
        shown.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        name = escape(_in_lines(summary.config.label)) + starred.get(mark_of(summary), "")
        values = (summary.metrics[metric] for metric, _, _ in columns)
        shown.add_row(name, *(_cell(*each) for each in zip(columns, values, strict=True)))
    return shown


def _in_lines(label: str) -> str:
    """Break a long label into lines, but never within a number."""
    return label.replace(",", ",\n ").replace(" ×tree:", "\n ×tree:\n ") if len(label) > _LONG else label


def _cell(column: tuple[str, str, int], interval: Interval | None) -> str:
    metric, _, digits = column
    if interval is None:
        return "–"
    if metric == "truncated":
        interval = Interval(*(100 * each for each in interval))
    elif metric == "seconds_per_answer":
        digits = max(0, digits + 1 - len(f"{interval.value:.0f}"))
    span = "" if metric == "acceptance_length" else _span(interval, min(digits, 2), "–")
    return short_number(interval.value, digits) + (f"\n{span}" if span else "")


def _every_metric(title: str, summaries: Sequence[RunSummary]) -> Table:
    how = f"{by} " if (by := verified_by(summaries)) else ""
    against = "value (95 % interval); wall time, score and length against lossless at its own best length"
    shown = _new(title, f"{how}{against}")
    shown.add_column("setting and metric", overflow="fold")
    shown.add_column("value", justify="right", no_wrap=True)
    shown.add_column("95 % interval", no_wrap=True)
    baselines = compared_with(summaries) or [""] * len(summaries)
    for summary, baseline in zip(summaries, baselines, strict=True):
        mark = mark_of(summary)
        said = mark or (f"compared with {baseline}" if baseline else "")
        name = escape(summary.config.label) + (f" ({escape(said)})" if said else "")
        shown.add_row(name)
        for metric, heading, digits in COLUMNS:
            interval = summary.metrics[metric]
            if interval is not None:
                shown.add_row(f"  {heading}", short_number(interval.value, digits), _span(interval, digits))
        shown.add_section()
    return shown


def _new(title: str, caption: str) -> Table:
    return Table(
        title=title,
        caption=caption,
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title_style="bold",
    )


def _span(interval: Interval, digits: int, to: str = " to ") -> str:
    if math.isnan(interval.low):
        return ""
    return f"{short_number(interval.low, digits)}{to}{short_number(interval.high, digits)}"


def show_results(results: Sequence[RunResult], configs: Sequence[RunConfig], every_metric: bool) -> None:
    """Print the results of some runs; baselines are looked for in the whole file."""
    from cactus_decoding.lab.evaluation.runs.summary import summarise

    wanted = {config.asking(seed=0) for config in configs}
    shown = [summary for summary in summarise(results) if summary.config in wanted]
    console = Console(highlight=False)
    console.print(*table(shown, every_metric=every_metric), sep="\n\n")
    for warning in (*length_warnings(shown), *timing_warnings(shown)):
        console.print(escape(warning))
