"""What pages of studies show: cells of tables of runs, and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cactus_decoding.lab.evaluation.intervals import Interval, Numbers, bootstrapped, paired_difference, resampled_sums
from cactus_decoding.lab.evaluation.runs.summary import RunGroup, RunSummary
from cactus_decoding.lab.reporting.pictures import SIZE, new_figure, to_svg
from cactus_decoding.lab.reporting.report import with_interval
from scripts.pages import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
else:
    Axes = Any  # some environments that only measure lack matplotlib


def picture(
    *panels: Callable[[Axes], object],
    size: tuple[float, float] = SIZE,
    columns: int | None = None,
    grid: bool = True,
    below: bool = False,
) -> str:
    """Return panels as SVG, each as its function draws it, side by side or in so many columns.

    Each has a legend if anything in it has a label; with ``below`` all have that of the last one, below them.
    """
    figure, columns = new_figure(size), columns or len(panels)
    all_axes = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False).flat
    for axes, draw in zip(all_axes, panels, strict=True):
        draw(axes)
        if grid:
            axes.grid(alpha=0.3)
        if not below and axes.get_legend() is None and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    if below:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return to_svg(figure)


def metric(name: str, digits: int) -> Cell:
    """Return the cell of a run's metric with its interval."""
    return lambda run: with_interval(run.metrics[name], digits)


def against(base: Callable[[RunSummary], RunSummary], what: str) -> Cell:
    """Return the cell of a comparison of a run with another one; see `compared`."""

    def cell(run: RunSummary) -> str:
        other = base(run)
        return "–" if run is other else with_interval(compared(run.group, other.group)[what], 3)

    return cell


def compared(first: RunGroup, second: RunGroup) -> dict[str, Interval | None]:
    """Return the difference of scores and the ratios of times, steps, nats and tokens per step, paired by problem."""
    names = ("right", "seconds", "steps", "nats", "accepted")
    counts = np.stack([group.columns[name] for name in names for group in (first, second)], axis=-1)
    sums, resampled = counts.sum(0), resampled_sums(counts)
    pairs: dict[str, Callable[[Numbers], Numbers]] = {
        "time": lambda of: of[..., 2:4],
        "steps": lambda of: of[..., 4:6],
        "nats": lambda of: of[..., 6:8],
        "tokens": lambda of: 1 + of[..., 8:10] / of[..., 4:6],
    }
    per_problem = min(len(each.results) for each in (first, second))
    found: dict[str, Interval | None] = {"score": paired_difference(counts[:, 0] - counts[:, 1], per_problem)}
    for name, pair in pairs.items():
        (above, below), drawn = pair(sums).tolist(), pair(resampled)
        ratios = (above / below, drawn[..., 0] / drawn[..., 1]) if below > 0 else None
        found[name] = ratios and bootstrapped(*ratios, len(first.ids))
    return found
