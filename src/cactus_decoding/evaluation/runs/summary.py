"""What a result file says: every metric of every setting with its 95 % interval, against lossless at its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from cactus_decoding.evaluation.intervals import Interval, Numbers, clustered_wilson, percentiles, resampled_sums
from cactus_decoding.evaluation.run_config import Cell
from cactus_decoding.evaluation.runs.results import AUDITED, COUNTS, CellResult

Sums = Mapping[str, Numbers]


@dataclass(frozen=True, eq=False)
class Setting:
    """The cells that differ in nothing but their seed.

    Attributes:
        cell: what they share; its seed says nothing.
        results: the cells, by seed.
    """

    cell: Cell
    results: tuple[CellResult, ...]

    @property
    def ids(self) -> list[str]:
        """The problems."""
        return list(self.results[0].answers["id"])

    @property
    def scored(self) -> bool:
        """Whether every answer is right or wrong."""
        return all(result.scored for result in self.results)

    @property
    def audited(self) -> bool:
        """Whether the exact costs are known."""
        return all(result.audited for result in self.results)

    @cached_property
    def columns(self) -> dict[str, Numbers]:
        """What is summed over problems: the mean of each problem's answers, ``[problems]``."""
        names = ["right", *COUNTS, "seconds", *(AUDITED[:-1] if self.audited else ())]
        return {name: np.mean([result.column(name) for result in self.results], axis=0) for name in names}

    @property
    def truncated(self) -> Numbers:
        """The share of each problem's answers that reached the limit of length, ``[problems]``."""
        reasons = [result.answers["finish_reason"] for result in self.results]
        cut = np.array([[reason == "length" for reason in column] for column in reasons], dtype=np.float64)
        return np.asarray(cut.mean(axis=0))


@dataclass(frozen=True, eq=False)
class Row:
    """A setting and what came out.

    Attributes:
        setting: its cells.
        baseline: lossless at its own best draft length; None where the file has no such cell.
        metrics: by name, with intervals; None where a metric needs what the file lacks.
    """

    setting: Setting
    baseline: Setting | None
    metrics: Mapping[str, Interval | None]

    @property
    def cell(self) -> Cell:
        """What the setting's cells share."""
        return self.setting.cell

    @property
    def seeds(self) -> list[int]:
        """The seeds that went into it."""
        return [result.cell.seed for result in self.setting.results]

    def as_dict(self) -> dict[str, object]:
        """Return everything, for JSON."""
        return {
            "cell": self.cell.as_dict(),
            "seeds": self.seeds,
            "baseline": None if self.baseline is None else self.baseline.cell.as_dict(),
            "metrics": {name: None if each is None else each._asdict() for name, each in self.metrics.items()},
        }


def _ratio(above: str, below: str, plus: float = 0.0) -> Callable[[Sums], Numbers]:
    def ratio(sums: Sums) -> Numbers:
        with np.errstate(divide="ignore", invalid="ignore"):
            return plus + sums[above] / sums[below]

    return ratio


METRICS: Mapping[str, Callable[[Sums], Numbers]] = MappingProxyType(
    {
        "score_difference": lambda sums: (sums["right"] - sums["baseline.right"]) / sums["answers"],
        "acceptance_length": _ratio("accepted", "steps", plus=1.0),
        "accepted_per_step": _ratio("accepted", "steps"),
        "acceptance_rate": _ratio("accepted", "drafted"),
        "relaxed_rate": _ratio("relaxed", "accepted"),
        "rejections_ratio": _ratio("recovered", "lossless.recovered"),
        "tokens_per_answer": _ratio("generated", "answers"),
        "length_ratio": _ratio("generated", "baseline.generated"),
        "rounds_per_answer": _ratio("steps", "answers"),
        "rounds_ratio": _ratio("steps", "baseline.steps"),
        "seconds_per_answer": _ratio("seconds", "answers"),
        "seconds_ratio": _ratio("seconds", "baseline.seconds"),
        "seconds_ratio_to_target_alone": _ratio("seconds", "alone.seconds"),
        "tokens_per_second": _ratio("generated", "seconds"),
        "nats_per_token": _ratio("nats", "generated"),
        "nats_per_answer": _ratio("nats", "answers"),
        "tv_per_position": _ratio("tv", "metered"),
    }
)
"""Metrics as functions of sums over problems. Without a prefix a sum is the setting's own; ``baseline`` is lossless at
its own best draft length, ``lossless`` is lossless at the setting's draft length, ``alone`` is the target alone."""

PROPORTIONS = ("score", "truncated")
LARGEST = ("max_likelihood_ratio",)
NAMES = ("score", *METRICS, "max_likelihood_ratio", "truncated")
"""Every metric of a row."""


def settings(results: Iterable[CellResult]) -> list[Setting]:
    """Return the cells of a file, gathered over seeds, in the order of their first one.

    Raises:
        ValueError: where the same cell stands there twice, or a task's cells hold answers to different problems.
    """
    gathered: dict[Cell, dict[int, CellResult]] = {}
    for result in results:
        shared = gathered.setdefault(replace(result.cell, seed=0), {})
        if result.cell.seed in shared:
            raise ValueError(f"there are two results of the cell {result.cell.key}")
        shared[result.cell.seed] = result
    found = [Setting(cell, tuple(by_seed[seed] for seed in sorted(by_seed))) for cell, by_seed in gathered.items()]
    asked: dict[tuple[str, int], list[str]] = {}
    for setting in found:
        for result in setting.results:
            ids = list(result.answers["id"])
            if asked.setdefault((setting.cell.task, setting.cell.problems), ids) != ids:
                raise ValueError(f"the cells of task {setting.cell.task!r} hold answers to different problems")
    return found


def comparable(cell: Cell) -> tuple[object, ...]:
    """Return what two cells must share to be compared: task, models, engine and sampling."""
    return (
        cell.task, cell.problems, cell.target, cell.draft, cell.engine,
        cell.temperature, cell.top_k, cell.top_p, cell.min_p, cell.max_new_tokens,
    )  # fmt: skip


def best_lossless(setting: Setting, all_settings: Sequence[Setting]) -> Setting | None:
    """Return lossless at the draft length (and the way to verify) with the least wall time per answer.

    The target alone counts only where there is no other lossless setting.
    """
    lossless = [
        other
        for other in all_settings
        if other.cell.rule == "lossless" and comparable(other.cell) == comparable(setting.cell)
    ]
    speculative = [other for other in lossless if other.cell.num_speculative_tokens != 0]
    return min(speculative or lossless, key=lambda other: float(other.columns["seconds"].mean()), default=None)


def summarise(results: Iterable[CellResult]) -> list[Row]:
    """Return a row for each setting, in the order of the file; the bootstrap's seed is fixed.

    Raises:
        ValueError: where the same cell stands there twice, or a task's cells hold answers to different problems.
    """
    found = settings(results)
    rows = []
    for setting in found:
        baseline = best_lossless(setting, found)
        rows.append(Row(setting, baseline, _metrics(setting, baseline, found)))
    return rows


def _metrics(setting: Setting, baseline: Setting | None, found: Sequence[Setting]) -> dict[str, Interval | None]:
    columns = dict(setting.columns)
    columns["answers"] = np.ones(len(setting.ids))
    if not setting.scored:
        del columns["right"]
    references = {"baseline": baseline, "lossless": _same_length(setting, found), "alone": _alone(setting, found)}
    for prefix, other in references.items():
        if other is not None:
            columns |= {f"{prefix}.{name}": column for name, column in other.columns.items()}
    names = list(columns)
    table = np.stack([columns[name] for name in names], axis=1)
    totals = dict(zip(names, table.sum(0), strict=True))
    # what is infinite in total has no spread, and infinity times no draw is no number
    resampled = dict(zip(names, resampled_sums(np.where(np.isfinite(table), table, 0.0)).T, strict=True))

    metrics: dict[str, Interval | None] = dict.fromkeys(NAMES)
    answers = len(setting.results)
    if setting.scored:
        metrics["score"] = clustered_wilson(setting.columns["right"], answers)
    metrics["truncated"] = clustered_wilson(setting.truncated, answers)
    for name, metric in METRICS.items():
        try:
            value = float(metric(totals))
        except KeyError:  # a column or a reference that the file lacks
            continue
        if math.isinf(value):
            metrics[name] = Interval(value, value, value)
        elif not math.isnan(value):
            spread = metric(resampled)
            metrics[name] = Interval(value, *percentiles(spread[np.isfinite(spread)]))  # without ratios over zero
    if setting.audited:
        largest = math.exp(min(max(float(result.column("max_log_ratio").max()) for result in setting.results), 700))
        metrics["max_likelihood_ratio"] = Interval(largest, math.nan, math.nan)  # a maximum: it has no interval
    return metrics


def _same_length(setting: Setting, found: Sequence[Setting]) -> Setting | None:
    """Return lossless with the same number of proposals, and the same way to verify if there is a choice."""
    same = [
        other
        for other in found
        if other.cell.rule == "lossless"
        and comparable(other.cell) == comparable(setting.cell)
        and other.cell.num_speculative_tokens == setting.cell.num_speculative_tokens
    ]
    same.sort(key=lambda other: other.cell.verification != setting.cell.verification)
    return same[0] if same else None


def _alone(setting: Setting, found: Sequence[Setting]) -> Setting | None:
    """Return the target alone."""
    for other in found:
        if other.cell.num_speculative_tokens == 0 and comparable(other.cell) == comparable(setting.cell):
            return other
    return None
