"""Tables and the picture of docs/studies/constraints.md, from the result file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding import Budget
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.evaluation.intervals import Interval, paired_difference, proportion
from cactus_decoding.lab.reporting.pictures import new_figure, to_svg
from scripts.pages import table
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
    head = (
        "setting", "stories", "tokens per step", "invented a number", "− lossless", "refused falsely", "right",
        "− lossless",
    )  # fmt: skip
    rows = []
    for tally in tallies:
        differences = ["0" if tally is lossless else _percent(tally.difference(lossless, e), "+") for e in "vr"]
        invented, refused, right = (_percent(tally.share(event)) for event in "vfr")
        counts = len(tally.result["outcomes"]), f"{tally.result['acceptance_length']:.2f}"
        rows.append([tally.name, *counts, invented, differences[0], refused, right, differences[1]])
    return table(head, rows)


def budget_table(tallies: Sequence[Tally]) -> str:
    """Return what budgets promised, and by how much each event happened oftener than under lossless; in per cent."""
    lossless = tallies[0]
    head = "setting", "promised: no event moves by more than", *EVENTS.values()
    rows = []
    for tally in tallies:
        if "budget_nats" not in tally.setting:
            continue
        promised = 100 * Budget(nats=tally.setting["budget_nats"]).shift
        moved = (_percent(tally.difference(lossless, event), "+") for event in EVENTS)
        result = tally.result
        spent = f"{result['nats'] / len(result['outcomes']):.4f} ({result['max_nats']:.4f})"
        rows.append([tally.name, f"{promised:.1f}", *moved, spent, f"{result['fell_back'] / result['metered']:.1%}"])
    return table((*head, "nats per answer, mean (most)", "positions fallen back"), rows)


def kind_table(content: Mapping[str, Any], tallies: Sequence[Tally]) -> str:
    """Return how often a number was invented, by what is wrong with the story; in per cent."""
    rows = []
    for tally in tallies:
        answered = list(zip(tally.result["outcomes"], content["kinds"], strict=False))
        shares = []
        for kind in UNANSWERABLE_KINDS:
            found = [outcome == "v" for outcome, each in answered if each == kind]
            shares.append(_percent(proportion(sum(found), len(found))) if found else "–")
        rows.append([tally.name, *shares])
    return table(("setting", *UNANSWERABLE_KINDS), rows)


def check_table(content: Mapping[str, Any]) -> str:
    """Return what the target answered by itself on validation."""
    head = "asked", "right", "wrong number", "refused falsely", "refused", "invented a number", "neither"
    validated = content["validation"].items()
    return table(head, ([name, *(counts.get(each, 0) for each in "rwfRvo")] for name, counts in validated))


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
    figure = new_figure((10, 0.32 * len(tallies) + 1.2))
    axes = figure.subplots(1, 3, sharey=True)
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
    write_atomically(path, to_svg(figure))


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
    for name, text in tables.items():
        pages.insert(name, text)
    picture(plain, drawn)
    pages.write()
