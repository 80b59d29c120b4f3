"""Tables and the picture of docs/studies/constraints.md, from the result file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cactus_decoding import Budget
from cactus_decoding.lab.evaluation.intervals import Interval, paired_difference, proportion
from scripts.pages import Cell, columns, with_ends
from studies.constraints.stories import UNANSWERABLE
from studies.shown import picture

EVENTS = {"v": "invented a number", "f": "refused falsely", "r": "right"}
"""Outcomes that tables show: the first of stories without an answer, the others of stories with one."""
COLOURS = {"protect": "#0072b2", "budget_nats": "#009e73", "lossless_tokens": "#cc79a7"}


@dataclass(frozen=True)
class Tally:
    """What came of one setting, given as the arguments of `generate`, and what the file has of it.

    ``happened`` is by outcome, 1 where it happened and 0 elsewhere, over the stories in which it can.
    """

    setting: Mapping[str, Any]
    happened: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
    result: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The setting, in Markdown, without its sampling."""
        said = {"rule": "`{}`", "protect": "protecting `{}`", "budget_nats": "budget {:g}"}
        said["lossless_tokens"] = "after {} tokens"
        parts = (form.format(self.setting[key]) for key, form in said.items() if key in self.setting)
        return ", ".join(parts).replace("|", r"\|")

    @property
    def sampling(self) -> str:
        """Which of the page's samplings it is."""
        return {1.0: "plain", 0.0: "greedy"}.get(self.setting.get("temperature", 1.0), "truncated")

    def share(self, event: str) -> Interval:
        """Return how often an outcome happened, with its exact interval."""
        found = self.happened[event]
        return proportion(float(found.sum()), len(found))

    def difference(self, other: Tally, event: str) -> Interval:
        """Return how much oftener it happened than under another setting, paired by story."""
        common = min(len(self.happened[event]), len(other.happened[event]))
        return paired_difference(self.happened[event][:common] - other.happened[event][:common])


def tallies_of(content: Mapping[str, Any]) -> list[Tally]:
    answerable = np.array([kind not in UNANSWERABLE for kind in content["kinds"]])
    tallies = []
    for result in content["settings"]:
        outcomes = np.array(list(result["outcomes"]))
        has = answerable[: len(outcomes)]
        happened = {event: (outcomes[~has if event == "v" else has] == event).astype(np.float64) for event in EVENTS}
        tallies.append(Tally(result["setting"], happened, result))
    return tallies


def share(event: str) -> Cell:
    return lambda one: with_ends(one.share(event), 1, 100)


def difference(lossless: Tally, event: str) -> Cell:
    return lambda one: "0" if one is lossless else with_ends(one.difference(lossless, event), 1, 100, "+")


def main_table(tallies: Sequence[Tally]) -> str:
    """Return what came of the settings of one sampling, of which the first is lossless; in per cent."""
    return columns(tallies, [
        ("setting", lambda one: one.name),
        ("stories", lambda one: len(one.result["outcomes"])),
        ("tokens per step", lambda one: f"{one.result['acceptance_length']:.2f}"),
        ("invented a number", share("v")), ("− lossless", difference(tallies[0], "v")),
        ("refused falsely", share("f")),
        ("right", share("r")), ("− lossless", difference(tallies[0], "r")),
    ])  # fmt: skip


def budget_table(tallies: Sequence[Tally]) -> str:
    """Return what budgets promised, and by how much each event happened oftener than under lossless; in per cent."""
    return columns([each for each in tallies if "budget_nats" in each.setting], {
        "setting": lambda one: one.name,
        "promised: no event moves by more than": lambda one: f"{100 * Budget(one.setting['budget_nats']).shift:.1f}",
        **{name: difference(tallies[0], event) for event, name in EVENTS.items()},
        "nats per answer, mean (most)":
            lambda one: f"{one.result['nats'] / len(one.result['outcomes']):.4f} ({one.result['max_nats']:.4f})",
        "positions fallen back": lambda one: f"{one.result['fell_back'] / one.result['metered']:.1%}",
    })  # fmt: skip


def panel(tallies: Sequence[Tally], event: str, title: str) -> Callable[[Any], None]:
    """Return what draws how often an outcome happened, with 95 % intervals, or without one the tokens per step."""
    places = np.arange(len(tallies))[::-1]

    def value(tally: Tally) -> Sequence[float]:
        return [100 * each for each in tally.share(event)] if event else [tally.result["acceptance_length"]] * 3

    def draw(axes: Any) -> None:
        for place, tally in zip(places, tallies, strict=True):
            lossless = tally.setting["rule"] == "lossless"
            colour = "0.3" if lossless else next((COLOURS[key] for key in COLOURS if key in tally.setting), "#d55e00")
            middle, low, high = value(tally)
            ends = [[middle - low], [high - middle]]
            axes.errorbar(middle, place, xerr=ends, fmt="o", color=colour, capsize=2 if event else 0, ms=4)
        middle, low, high = value(tallies[0])
        if event:
            axes.axvspan(low, high, color="0.92", zorder=0)
        else:
            axes.axvline(middle, color="0.8", zorder=0)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="y", color="0.95")
        names = [tally.name.replace("`", "").replace("\\|", "|") for tally in tallies]
        axes.set_yticks(places, names if event == "v" else [""] * len(names), fontsize=8)

    return draw


def shown(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables, and the picture."""
    tallies = tallies_of(content)
    groups = {name: [each for each in tallies if each.sampling == name] for name in ("plain", "truncated", "greedy")}
    plain = groups["plain"]
    tables = {f"constraints {name}": main_table(found) if found else "" for name, found in groups.items()}
    return tables | {
        "constraints budgets": budget_table(plain),
        "pictures/constraints.svg": picture(
            panel(plain, "v", "invented a number, %"), panel(plain, "r", "right answers, %"),
            panel(plain, "", "tokens per step"), size=(10, 0.32 * len(plain) + 1.2), grid=False,
        ),
    }  # fmt: skip
