"""How evaluations look on a terminal: a table for each task and pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

if TYPE_CHECKING:
    from cactus_decoding.evaluation.intervals import Interval
    from cactus_decoding.evaluation.runs.summary import RunSummary

COLUMNS = (
    ("score", "score", 3),
    ("score_difference", "Δ score", 3),
    ("acceptance_length", "acceptance_length", 2),
    ("rejections_ratio", "rejections ÷ lossless", 2),
    ("length_ratio", "length ratio", 3),
    ("rounds_per_answer", "rounds per answer", 1),
    ("seconds_per_answer", "seconds per answer", 3),
    ("seconds_ratio", "wall time ÷ best lossless", 2),
    ("tokens_per_second", "tokens per second", 0),
    ("nats_per_token", "nats per token", 4),
    ("nats_per_answer", "nats per answer", 3),
    ("tv_per_position", "TV", 3),
    ("max_likelihood_ratio", "largest ratio", 1),
    ("truncated", "truncated", 3),
)
"""Name of the metric, heading, digits."""


def table(summaries: Sequence[RunSummary]) -> list[Group | Table]:
    """Return a table for each task and pair: runs go across, as there are more metrics than fit on a line."""
    groups: dict[tuple[object, ...], list[RunSummary]] = {}
    for summary in summaries:
        config = summary.config
        groups.setdefault((config.task, config.target, config.draft, config.engine), []).append(summary)
    return [_one(key, group) for key, group in groups.items()]


def _one(key: tuple[object, ...], summaries: Sequence[RunSummary]) -> Table:
    task, target, draft, engine = key
    shown = Table(
        title=f"{task}: {summaries[0].config.problems} problems, {target} with {draft}, {engine}",
        caption="value [95 % interval]; wall time, Δ score and length against lossless at its own best draft length",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title_style="bold",
    )
    shown.add_column("setting", overflow="fold")
    shown.add_column("metric")
    shown.add_column("value", justify="right")
    shown.add_column("95 % interval")
    for summary in summaries:
        name = summary.config.label + (" (best lossless)" if summary.group is summary.baseline else "")
        for metric, heading, digits in COLUMNS:
            interval = summary.metrics[metric]
            if interval is not None:
                shown.add_row(name, heading, f"{interval.value:.{digits}f}", _span(interval, digits))
                name = ""
        shown.add_section()
    return shown


def _span(interval: Interval, digits: int) -> str:
    return "" if math.isnan(interval.low) else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
