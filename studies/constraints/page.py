"""Tables and the picture of docs/studies/constraints.md, from the result file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding import Budget
from cactus_decoding.lab.evaluation.intervals import Interval, paired_difference, proportion
from studies.pages import StudyPage

UNANSWERABLE_KINDS = ("left out", "vague", "vague twice", "contradicted")
EVENTS = {"v": "invented a number", "f": "refused falsely", "r": "right"}
"""Outcomes that tables show: the first of stories without an answer, the others of stories with one."""


@dataclass(frozen=True)
class Tally:
    """What came of one setting.

    Attributes:
        setting: as the arguments of `generate`.
        happened: by outcome, 1 where it happened and 0 elsewhere, over the stories in which it can.
        result: what the file has of the setting.
    """

    setting: Mapping[str, Any]
    happened: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
    result: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The setting, in Markdown, without its sampling."""
        said = [f"`{self.setting['rule']}`"]
        if "protect" in self.setting:
            said.append(f"protecting `{self.setting['protect']}`".replace("|", r"\|"))
        if "budget_nats" in self.setting:
            said.append(f"budget {self.setting['budget_nats']:g}")
        if "lossless_tokens" in self.setting:
            said.append(f"after {self.setting['lossless_tokens']} tokens")
        return ", ".join(said)

    @property
    def sampling(self) -> str:
        """Which of the page's samplings it is."""
        temperature = self.setting.get("temperature", 1.0)
        return "plain" if temperature == 1.0 else "greedy" if temperature == 0.0 else "truncated"

    def share(self, event: str) -> Interval:
        """Return how often an outcome happened, with its exact interval."""
        found = self.happened[event]
        return proportion(float(found.sum()), len(found))

    def difference(self, other: Tally, event: str) -> Interval:
        """Return how much oftener it happened than under another setting, paired by story."""
        common = min(len(self.happened[event]), len(other.happened[event]))
        return paired_difference(self.happened[event][:common] - other.happened[event][:common])


def read(path: Path) -> tuple[dict[str, Any], list[Tally]]:
    """Return a result file and its settings."""
    content = json.loads(path.read_text())
    answerable = np.array([kind not in UNANSWERABLE_KINDS for kind in content["kinds"]])
    tallies = []
    for result in content["settings"]:
        outcomes = np.array(list(result["outcomes"]))
        has = answerable[: len(outcomes)]
        happened = {event: (outcomes[~has if event == "v" else has] == event).astype(np.float64) for event in EVENTS}
        tallies.append(Tally(result["setting"], happened, result))
    return content, tallies


def _percent(interval: Interval, sign: str = "") -> str:
    value, low, high = (f"{100 * each:{sign}.1f}" for each in interval)
    return f"{value} ({low} to {high})"


def main_table(tallies: Sequence[Tally]) -> str:
    """Return what came of the settings of one sampling, of which the first is lossless; in per cent."""
    lossless = tallies[0]
    lines = [
        "| setting | stories | tokens per step "
        "| invented a number | − lossless | refused falsely | right | − lossless |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for tally in tallies:
        differences = ["0" if tally is lossless else _percent(tally.difference(lossless, e), "+") for e in "vr"]
        lines.append(
            f"| {tally.name} | {len(tally.result['outcomes'])} | {tally.result['acceptance_length']:.2f} "
            f"| {_percent(tally.share('v'))} | {differences[0]} "
            f"| {_percent(tally.share('f'))} | {_percent(tally.share('r'))} | {differences[1]} |"
        )
    return "\n".join(lines)


def budget_table(tallies: Sequence[Tally]) -> str:
    """Return what budgets promised, and by how much each event happened oftener than under lossless; in per cent."""
    lossless = tallies[0]
    lines = [
        "| setting | promised: no event moves by more than | invented a number | refused falsely | right "
        "| nats per answer, mean (most) | positions fallen back |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for tally in tallies:
        if "budget_nats" not in tally.setting:
            continue
        promised = 100 * Budget(nats=tally.setting["budget_nats"]).shift
        moved = " | ".join(_percent(tally.difference(lossless, event), "+") for event in EVENTS)
        result = tally.result
        spent = f"{result['nats'] / len(result['outcomes']):.4f} ({result['max_nats']:.4f})"
        lines.append(
            f"| {tally.name} | {promised:.1f} | {moved} | {spent} | {result['fell_back'] / result['metered']:.1%} |"
        )
    return "\n".join(lines)


def kind_table(content: Mapping[str, Any], tallies: Sequence[Tally]) -> str:
    """Return how often a number was invented, by what is wrong with the story; in per cent."""
    lines = [f"| setting | {' | '.join(UNANSWERABLE_KINDS)} |", "|---|" + "---:|" * len(UNANSWERABLE_KINDS)]
    for tally in tallies:
        answered = list(zip(tally.result["outcomes"], content["kinds"], strict=False))
        shares = []
        for kind in UNANSWERABLE_KINDS:
            found = [outcome == "v" for outcome, each in answered if each == kind]
            shares.append(_percent(proportion(sum(found), len(found))) if found else "–")
        lines.append(f"| {tally.name} | {' | '.join(shares)} |")
    return "\n".join(lines)


def check_table(content: Mapping[str, Any]) -> str:
    """Return what the target answered by itself on validation."""
    lines = [
        "| asked | right | wrong number | refused falsely | refused | invented a number | neither |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, counts in content["validation"].items():
        lines.append(f"| {name} | " + " | ".join(str(counts.get(each, 0)) for each in "rwfRvo") + " |")
    return "\n".join(lines)


def examples(tallies: Sequence[Tally]) -> str:
    """Return the first number that each of two relaxed rules invented."""
    shown = [tally for tally in tallies[1:] if tally.result["example"]][:2]
    parts = []
    for tally in shown:
        example = tally.result["example"]
        text = "\n".join(f"    {line}" for line in [example["question"], "", *example["text"].strip().splitlines()])
        parts.append(f"{tally.name}:\n\n{text}")
    return "\n\n".join(parts)


def picture(tallies: Sequence[Tally], path: Path) -> None:
    """Draw invented numbers, right answers and tokens per step of each setting, with 95 % intervals."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "constraints"  # the same file from the same results
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(10, 0.32 * len(tallies) + 1.2), layout="constrained")
    places = np.arange(len(tallies))[::-1]
    for axis, (event, title) in zip(
        axes, (("v", "invented a number, %"), ("r", "right answers, %"), ("", "tokens per step")), strict=True
    ):
        for place, tally in zip(places, tallies, strict=True):
            colour = "#d55e00"
            if tally.setting["rule"] == "lossless":
                colour = "0.3"
            elif "protect" in tally.setting:
                colour = "#0072b2"
            elif "budget_nats" in tally.setting:
                colour = "#009e73"
            elif "lossless_tokens" in tally.setting:
                colour = "#cc79a7"
            if event:
                value, low, high = (100 * each for each in tally.share(event))
                axis.errorbar(
                    value, place, xerr=[[value - low], [high - value]], fmt="o", color=colour, capsize=2, ms=4
                )
            else:
                axis.plot(tally.result["acceptance_length"], place, "o", color=colour, ms=4)
        if event:
            _, low, high = (100 * each for each in tallies[0].share(event))
            axis.axvspan(low, high, color="0.92", zorder=0)
        else:
            axis.axvline(tallies[0].result["acceptance_length"], color="0.8", zorder=0)
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", color="0.95")
    names = [tally.name.replace("`", "").replace("\\|", "|") for tally in tallies]
    axes[0].set_yticks(places, names, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def render(results: Path, drawn: Path, page: Path) -> None:
    """Replace the tables of the page and write the picture; raises `OSError` where the result file is missing."""
    content, tallies = read(results)
    groups = {name: [each for each in tallies if each.sampling == name] for name in ("plain", "truncated", "greedy")}
    plain = groups["plain"]
    tables = {f"constraints {name}": main_table(found) if found else "" for name, found in groups.items()}
    tables |= {
        "constraints check": check_table(content),
        "constraints budgets": budget_table(plain),
        "constraints kinds": kind_table(content, plain),
        "constraints examples": examples(plain),
    }
    pages = StudyPage(page)
    for name, table in tables.items():
        pages.insert(name, table)
    picture(plain, drawn)
    pages.write()
