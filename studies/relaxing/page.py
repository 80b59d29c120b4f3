"""Tables and pictures of the study of protected relaxing, from its result files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.lab.evaluation.intervals import Interval, Numbers, bootstrapped, resampled_sums
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunGroup, RunSummary, grouped, summarise
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, to_svg
from cactus_decoding.lab.reporting.report import escape, number
from scripts.pages import Cell, columns, table
from scripts.results import read
from studies.rules.page import compared
from studies.stored import read_results

PAPER = {"lossless": "5.11", "cactus:delta=1.0": "7.00"}
"""Accepted tokens a step that the Cactus paper gives (arXiv 2604.04987, table 1) for Qwen3 0.6B + 14B on GSM8K."""
LINES = {
    "lossless": ("#000000", "-"),
    "unprotected": ("#d55e00", ":"),
    "protected": ("#0072b2", "-"),
    "learned": ("#009e73", "--"),
    "Cactus, protected": ("#cc79a7", "-."),
}
COST_RATIOS = np.geomspace(0.02, 0.5, 40)


class Results:
    """One sampling's runs: chosen on validation problems, and on held-out ones what was chosen, and the grid."""

    def __init__(self, folder: Path, sampling: str) -> None:
        chosen = read(folder / f"chosen-{sampling}.json")["chosen"]
        self.chosen = {kind: RunConfig.from_dict(config) for kind, config in chosen.items()}
        validated = grouped(read_results(folder / f"{sampling}-chosen.jsonl"))
        self.validated = {group.config: group for group in validated}
        self.tuned, self.grid = (
            summarise(read_results(folder / f"{sampling}-{part}.jsonl")) for part in ("tuned", "grid")
        )


def shown(folder: Path, samplings: Sequence[str]) -> dict[str, str]:
    """Return the tables and pictures; raises `OSError` where a result file is missing."""
    costs = read(folder / "costs.json")["seconds"]
    found = {"costs": _costs(costs)}
    for sampling in samplings:
        results = Results(folder, sampling)
        found |= {
            f"chosen {sampling}": _chosen(results),
            f"tuned {sampling}": _tuned(results),
            f"grid {sampling}": _grid(results.grid),
            f"pictures/relaxing/{sampling}-cost-ratio.svg": _cost_picture(results, costs),
        }
        if sampling == "truncated":
            found["paper"] = _paper(summarise(read_results(folder / f"{sampling}-paper.jsonl")))
    return found


def _named(config: RunConfig) -> str:
    return escape(config.label)


def _chosen(results: Results) -> str:
    rows = []
    for kind, config in results.chosen.items():
        group = results.validated[config]
        columns = {name: column.sum() for name, column in group.columns.items()}
        score, tokens = columns["right"] / len(group.ids), 1 + columns["accepted"] / columns["steps"]
        rows.append([kind, _named(config), f"{score:.3f}", f"{tokens:.2f}"])
    return table(("kind", "chosen", "score there", "tokens per step"), rows, names=2)


def _tuned(results: Results) -> str:
    """Return what was chosen on held-out problems, beside lossless at its best and at the same length."""
    groups = {summary.config.asking(seed=0): summary for summary in results.tuned}
    lossless = results.chosen["lossless"]
    best = _held_out(lossless, groups)

    def same(summary: RunSummary) -> RunSummary:
        length = summary.config.request.num_speculative_tokens
        return _held_out(lossless.asking(num_speculative_tokens=length), groups)

    def beside(
        other: Callable[[RunSummary], RunSummary], compare: Callable[[RunGroup, RunGroup], Interval | None]
    ) -> Cell:
        def cell(summary: RunSummary) -> str:
            beside = other(summary)
            return "–" if summary is beside else number(compare(summary.group, beside.group), 3)

        return cell

    def metric(name: str, digits: int) -> Cell:
        return lambda summary: number(summary.metrics[name], digits)

    return columns(groups.values(), {
        "setting": lambda summary: _named(summary.config) + (" (best lossless)" if summary is best else ""),
        "score": metric("score", 3),
        "score − lossless, same length": beside(same, lambda one, other: next(compared(one, other))),
        "tokens per step": metric("acceptance_length", 2),
        "÷ lossless, same length": beside(same, tokens_ratio),
        "steps per answer": metric("steps_per_answer", 1),
        "wall time ÷ best lossless": beside(lambda _: best, lambda one, other: [*compared(one, other)][1]),
        "nats per token": metric("nats_per_token", 4),
    })  # fmt: skip


def _held_out(config: RunConfig, groups: Mapping[RunConfig, RunSummary]) -> RunSummary:
    """Return the held-out group that asks what a validation run asks."""
    return next(each for each in groups.values() if each.config.request == config.request)


def tokens_ratio(first: RunGroup, second: RunGroup) -> Interval:
    """Return the ratio of tokens per step, paired by problem."""
    sums = np.stack([group.columns[name] for group in (first, second) for name in ("accepted", "steps")], axis=1)

    def ratio(of: Numbers) -> Numbers:
        above, below = 1 + of[..., 0] / of[..., 1], 1 + of[..., 2] / of[..., 3]
        return np.asarray(above / below)

    return bootstrapped(float(ratio(sums.sum(0))), ratio(resampled_sums(sums)), len(first.ids))


def _paper(summaries: Sequence[RunSummary]) -> str:
    lossless = next(each for each in summaries if each.config.rule == "lossless")
    rows = []
    for each in summaries:
        accepted, reference = (one.metrics["accepted_per_step"] for one in (each, lossless))
        assert accepted is not None
        assert reference is not None
        paper = PAPER.get(each.config.rule, "–") if each.config.request.policy.everywhere else "–"
        ratio = f"{accepted.value / reference.value:.2f}"
        rows.append([_named(each.config), number(each.metrics["score"], 3), number(accepted, 2), ratio, paper])
    return table(("setting", "score", "accepted per step", "÷ lossless", "the paper's, on its pair"), rows)


def _grid(summaries: Sequence[RunSummary]) -> str:
    """Return score and tokens per step of every rule and policy, a column for each draft length."""
    lengths = sorted({int(each.config.num_speculative_tokens) for each in summaries})
    by_setting: dict[str, dict[int, str]] = {}
    for each in summaries:
        score, tokens = each.metrics["score"], each.metrics["acceptance_length"]
        assert score is not None
        assert tokens is not None
        found = by_setting.setdefault(each.config.label.rpartition(" ×")[0], {})
        found[int(each.config.num_speculative_tokens)] = f"{score.value:.2f}, {tokens.value:.2f}"
    rows = [[escape(name), *(found.get(length, "–") for length in lengths)] for name, found in by_setting.items()]
    return table(("score, tokens per step", *(f"×{length}" for length in lengths)), rows)


class Costs:
    """What a step costs, in passes of the target over one token: of the draft, and of each further token."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        target = {int(name.split()[-1]): value for name, value in seconds.items() if name.startswith("target")}
        self.draft = seconds["draft on 1"] / target[1]
        # the slope of the line through the measured passes
        self.token = float(np.polyfit(list(target), list(target.values()), 1)[0]) / target[1]

    def per_answer(self, group: RunGroup, draft: float | Numbers) -> Numbers:
        """Return passes of the target that an answer takes, for a cost of the draft's pass."""
        sums = {name: float(column.mean()) for name, column in group.columns.items() if name in ("steps", "drafted")}
        return sums["steps"] + sums["drafted"] * (self.token + np.asarray(draft))


def _costs(seconds: Mapping[str, float]) -> str:
    costs = Costs(seconds)
    rows = [
        [f"{name} token{'s' * (not name.endswith(' 1'))}", f"{1e3 * value:.2f} ms"] for name, value in seconds.items()
    ]
    rows.append(["draft ÷ target: c", f"{costs.draft:.2f}"])
    rows.append(["each further token of a target pass", f"{costs.token:.3f} passes"])
    return table(("pass", "median"), rows)


def _cost_picture(results: Results, seconds: Mapping[str, float]) -> str:
    """Return time per answer against what a draft pass costs: lengths chosen on validation problems for each cost."""
    costs, figure = Costs(seconds), new_figure()
    panel = figure.subplots()
    grid = {summary.config: summary.group for summary in results.grid}
    for kind, (colour, dashes) in LINES.items():
        chosen = results.chosen[kind]
        lengths = [each for each in results.validated if _but_length(each) == _but_length(chosen)]
        times = []
        for ratio in COST_RATIOS:
            best = min(lengths, key=lambda each: float(costs.per_answer(results.validated[each], ratio)))
            held_out = next(group for config, group in grid.items() if config.request == best.request)
            times.append(float(costs.per_answer(held_out, ratio)))
        panel.plot(COST_RATIOS, times, color=colour, linestyle=dashes, label=kind)
    panel.axvline(costs.draft, color=GREY, lw=1, ls=":")
    look = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": GREY, "fontsize": 8}
    panel.annotate("this machine", (costs.draft, 1), (3, -10), **look)
    panel.set_xscale("log")
    panel.set_xticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set(xlabel="cost of a draft pass, in target passes (c)", ylabel="target passes per answer")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    return to_svg(figure)


def _but_length(config: RunConfig) -> RunConfig:
    return config.asking(num_speculative_tokens=FixedLength(0))
