"""What a result file says: every metric of every run with its 95 % interval, compared with lossless at its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from cactus_decoding.lab.evaluation.intervals import (
    Interval,
    Numbers,
    bootstrapped,
    clustered_proportion,
    paired_difference,
    resampled_sums,
)
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.alike import check_comparable, timed_on, unlike
from cactus_decoding.lab.evaluation.runs.results import AUDITED, COUNTS, RunResult

Sums = Mapping[str, Numbers]


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs that differ in nothing but the seed; the seed of ``config`` means nothing."""

    config: RunConfig
    results: tuple[RunResult, ...]

    @property
    def ids(self) -> list[str]:
        return list(self.results[0].answers["id"])

    @property
    def scored(self) -> bool:
        return all(result.scored for result in self.results)

    @property
    def audited(self) -> bool:
        return all(result.audited for result in self.results)

    @cached_property
    def columns(self) -> dict[str, Numbers]:
        """What is summed over problems: the mean of each problem's answers, ``[problems]``."""
        names = ["right", *COUNTS, "seconds", *(AUDITED[:-1] if self.audited else ())]
        names += ["first_seconds"] if all("first_seconds" in each.answers for each in self.results) else []
        return {name: np.mean([result.column(name) for result in self.results], axis=0) for name in names}

    @property
    def truncated(self) -> Numbers:
        """The share of each problem's answers that reached the limit of length, ``[problems]``."""
        reasons = [result.answers["finish_reason"] for result in self.results]
        cut = np.array([[reason == "length" for reason in column] for column in reasons], dtype=np.float64)
        return np.asarray(cut.mean(axis=0))


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A group of runs and its metrics.

    The baseline is lossless at its own best draft length, of chains if there are any; ``best_tree`` is lossless at its
    own best tree. Coupled runs have coupled baselines, and others have others, if the file has both; so have runs that
    were timed on different machines or with other threads or workers. Both are None if the file has no such run, and a
    metric is None if the file lacks what it needs, or if times that were not taken alike would be compared.
    """

    group: RunGroup
    baseline: RunGroup | None
    best_tree: RunGroup | None
    metrics: Mapping[str, Interval | None]

    @property
    def config(self) -> RunConfig:
        return self.group.config

    @property
    def seeds(self) -> list[int]:
        return [result.config.seed for result in self.group.results]

    def known(self, metric: str) -> Interval:
        found = self.metrics[metric]
        assert found is not None
        return found

    def as_dict(self) -> dict[str, object]:
        return {
            "cell": self.config.as_dict(),
            "seeds": self.seeds,
            "baseline": None if self.baseline is None else self.baseline.config.as_dict(),
            "best_tree": None if self.best_tree is None else self.best_tree.config.as_dict(),
            "metrics": {name: None if each is None else each._asdict() for name, each in self.metrics.items()},
        }


def _ratio(above: str, below: str, plus: float = 0.0) -> Callable[[Sums], Numbers]:
    def ratio(sums: Sums) -> Numbers:
        with np.errstate(divide="ignore", invalid="ignore"):
            return plus + sums[above] / sums[below]

    return ratio


PASS_AT = (2, 5, 10, 100)
"""Numbers of answers for pass@k, each where there are as many seeds."""

METRICS: Mapping[str, Callable[[Sums], Numbers]] = MappingProxyType(
    {
        "acceptance_length": _ratio("accepted", "steps", plus=1.0),
        "accepted_per_step": _ratio("accepted", "steps"),
        "acceptance_rate": _ratio("accepted", "drafted"),
        "relaxed_rate": _ratio("relaxed", "accepted"),
        "nodes_per_step": _ratio("nodes", "steps"),
        "rejections_ratio": _ratio("recovered", "lossless.recovered"),
        "tokens_per_answer": _ratio("generated", "answers"),
        "length_ratio": _ratio("generated", "baseline.generated"),
        "steps_per_answer": _ratio("steps", "answers"),
        "steps_ratio": _ratio("steps", "baseline.steps"),
        "seconds_per_answer": _ratio("seconds", "answers"),
        "first_seconds_per_answer": _ratio("first_seconds", "answers"),
        "seconds_ratio": _ratio("seconds", "baseline.seconds"),
        "seconds_ratio_to_best_tree": _ratio("seconds", "best_tree.seconds"),
        "seconds_ratio_to_target_alone": _ratio("seconds", "alone.seconds"),
        "tokens_per_second": _ratio("generated", "seconds"),
        "nats_per_token": _ratio("nats", "generated"),
        "nats_per_answer": _ratio("nats", "answers"),
        "tv_per_position": _ratio("tv", "metered"),
    }
    | {f"pass_at_{k}": _ratio(f"pass_at_{k}", "answers") for k in PASS_AT}
)
"""Metrics as functions of sums over problems. Without a prefix a sum is the group's own; ``baseline`` is lossless at
its best draft length, ``best_tree`` lossless at its best tree, ``lossless`` lossless at the group's draft length, and
``alone`` the target alone. ``nodes`` are the proposals of trees."""

NAMES = ("score", "score_difference", *METRICS, "max_likelihood_ratio", "truncated", "truncated_difference")
"""Every metric of a summary."""


def grouped(results: Iterable[RunResult]) -> list[RunGroup]:
    """Return the runs of a file grouped over seeds, in the order of their first one.

    Raises `ValueError` for runs of a task with other problems, or whose answers were read in another way.
    """
    results = list(results)
    check_comparable(results)
    gathered: dict[RunConfig, dict[int, RunResult]] = {}
    for result in results:
        shared = gathered.setdefault(result.config.asking(seed=0), {})
        if result.config.seed in shared:
            raise ValueError(f"there are two results of the run {result.config.key}")
        shared[result.config.seed] = result
    found = [RunGroup(config, tuple(runs[seed] for seed in sorted(runs))) for config, runs in gathered.items()]
    asked: dict[tuple[str, int], list[str]] = {}
    for group in found:
        for result in group.results:
            ids = list(result.answers["id"])
            if asked.setdefault((group.config.task, group.config.problems), ids) != ids:
                raise ValueError(f"the runs of task {group.config.task!r} hold answers to different problems")
    return found


def lossless_beside(group: RunGroup, groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the lossless runs that a group can be compared with."""
    comparable = group.config.comparable
    return [other for other in groups if other.config.rule == "lossless" and other.config.comparable == comparable]


def drawn_alike(group: RunGroup, others: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the runs that share the group's noise if it is coupled, or else are not coupled; all if there are none."""
    return [other for other in others if other.config.coupled == group.config.coupled] or list(others)


def timed_apart(one: RunGroup, other: RunGroup) -> list[str]:
    """Return what differs of the machines, threads and workers that two groups were timed with; of the same seeds."""
    seeds = [[result.config.seed for result in each.results] for each in (one, other)]
    pairs = (
        zip(one.results, other.results, strict=True) if seeds[0] == seeds[1] else product(one.results, other.results)
    )
    return sorted({name for a, b in pairs for name in unlike(timed_on(a.provenance), timed_on(b.provenance))})


def timed_alike(group: RunGroup, others: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the runs whose times can be compared with the group's; all if there are none."""
    return [other for other in others if not timed_apart(group, other)] or list(others)


def best_lossless(lossless: Sequence[RunGroup]) -> RunGroup | None:
    """Return lossless at the draft length (and verification) with the least wall time per answer.

    Trees count only if there is no chain, and the target alone only if there is no other lossless run.
    """
    chains = [group for group in lossless if not group.config.proposes_trees]
    speculative = [group for group in chains if group.config.num_speculative_tokens != 0]
    return _fastest(speculative) or best_lossless_tree(lossless) or _fastest(chains)


def best_lossless_tree(lossless: Sequence[RunGroup]) -> RunGroup | None:
    return _fastest([group for group in lossless if group.config.proposes_trees])


def _fastest(groups: Sequence[RunGroup]) -> RunGroup | None:
    return min(groups, key=lambda group: float(group.columns["seconds"].mean()), default=None)


def summarise(results: Iterable[RunResult]) -> list[RunSummary]:
    """Return a summary of each group of runs, in the order of the file; the bootstrap's seed is fixed."""
    found = grouped(results)
    summaries = []
    for group in found:
        lossless = lossless_beside(group, found)
        without = drawn_alike(group, [other for other in lossless if other.config.num_speculative_tokens == 0])
        alone = next(iter(timed_alike(group, without)), None)
        lossless = timed_alike(group, drawn_alike(group, lossless))
        baseline, best_tree = best_lossless(lossless), best_lossless_tree(lossless)
        same_length = _same_length(group, lossless)
        references = {"baseline": baseline, "best_tree": best_tree, "lossless": same_length, "alone": alone}
        summaries.append(RunSummary(group, baseline, best_tree, _metrics(group, references)))
    return summaries


def _metrics(group: RunGroup, references: Mapping[str, RunGroup | None]) -> dict[str, Interval | None]:
    columns = dict(group.columns)
    columns["answers"] = np.ones(len(group.ids))
    if group.config.proposes_trees:
        columns["nodes"] = columns["drafted"]
    if group.scored:
        right = np.stack([result.column("right") for result in group.results], axis=1)
        columns |= {f"pass_at_{k}": pass_at(right, k) for k in PASS_AT if k <= right.shape[1]}
    else:
        del columns["right"]
    for prefix, other in references.items():
        if other is not None:
            left_out = ("seconds",) if timed_apart(group, other) else ()
            columns |= {f"{prefix}.{name}": each for name, each in other.columns.items() if name not in left_out}
    names = list(columns)
    table = np.stack([columns[name] for name in names], axis=1)
    totals = dict(zip(names, table.sum(0), strict=True))
    # what is infinite in total has no spread, and infinity times no draw is no number
    resampled = dict(zip(names, resampled_sums(np.where(np.isfinite(table), table, 0.0)).T, strict=True))

    metrics: dict[str, Interval | None] = dict.fromkeys(NAMES)
    answers, baseline = len(group.results), references["baseline"]
    if group.scored:
        metrics["score"] = clustered_proportion(group.columns["right"], answers)
    if group.scored and baseline is not None and baseline.scored:
        metrics["score_difference"] = _difference(group, baseline, lambda each: each.columns["right"])
    metrics["truncated"] = clustered_proportion(group.truncated, answers)
    if baseline is not None:
        metrics["truncated_difference"] = _difference(group, baseline, lambda each: each.truncated)
    for name, metric in METRICS.items():
        try:
            value = float(metric(totals))
        except KeyError:  # a column or a reference that the file lacks
            continue
        if math.isinf(value):
            metrics[name] = Interval(value, value, value)
        elif not math.isnan(value):
            metrics[name] = bootstrapped(value, metric(resampled), len(group.ids))
    if group.audited:
        largest = max(float(result.column("max_log_ratio").max()) for result in group.results)
        if not math.isnan(largest):  # a maximum: it has no interval
            with np.errstate(over="ignore"):  # what no float holds is infinite, as what is infinite
                metrics["max_likelihood_ratio"] = Interval(float(np.exp(largest)), math.nan, math.nan)
    return metrics


def pass_at(right: ArrayLike, k: int) -> Numbers:
    r"""Return how often one of k answers is right, estimated without bias from n ≥ k of them, ``[problems]``.

    .. math:: 1 - \binom{n - c}{k} / \binom{n}{k}

    with c of the n answers right. ``right`` holds 0 or 1, ``[problems, n]``.

    Source: Chen et al., arXiv 2107.03374, equation 1.
    """
    answers = np.asarray(right, dtype=np.int64)
    n = answers.shape[1]
    return np.array([1 - math.comb(n - int(c), k) / math.comb(n, k) for c in answers.sum(1)])


def _difference(group: RunGroup, baseline: RunGroup, share: Callable[[RunGroup], Numbers]) -> Interval:
    """Return the paired difference of what answers are in shares of each problem, ``[problems]``."""
    differences = share(group) - share(baseline)
    if _writes_the_same(group, baseline) and not differences.any():
        return Interval(0.0, math.nan, math.nan)  # there is nothing to estimate
    answers = min(len(each.results) for each in (group, baseline))
    return paired_difference(differences, answers)


def _writes_the_same(group: RunGroup, other: RunGroup) -> bool:
    """Whether two groups write the same texts by definition, up to rounding."""
    if group is other:
        return True
    seeds = [[result.config.seed for result in each.results] for each in (group, other)]
    return seeds[0] == seeds[1] and all(each.config.request.one_text for each in (group, other))


def _same_length(group: RunGroup, lossless: Sequence[RunGroup]) -> RunGroup | None:
    """Return lossless with the same number of proposals, and the same verification if there is a choice."""
    config = group.config
    same = [other for other in lossless if other.config.num_speculative_tokens == config.num_speculative_tokens]
    same.sort(key=lambda other: other.config.request.verification != config.request.verification)
    return same[0] if same else None
