"""Tables and pictures of the study of trained drafts, from its result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding.lab.evaluation.intervals import Interval, Numbers, ratio_of_sums
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, to_svg
from cactus_decoding.lab.reporting.report import number
from scripts.pages import table
from scripts.results import read
from studies.relaxing.page import tokens_ratio
from studies.rules.page import compared
from studies.stored import read_results
from studies.training.cheap_drafts import table as cheap_drafts

SAMPLINGS = ("plain", "truncated")
WINDOW = 50
"""Problems of each point of the picture."""
COLOURS = {"bundled:worded": "#0072b2", "bundled:draft": "#d55e00"}


def shown(folder: Path) -> dict[str, str]:
    """Return the tables and the picture, as far as there are results."""
    found: dict[str, str] = {}
    for file, parts in {
        "losses.json.gz": {
            "losses": partial(_losses, start="bundled:worded"),
            "losses of the other draft": partial(_losses, start="bundled:draft"),
        },
        "four.json": {
            "long": _long,
            "four": lambda content: _four(content["chosen"], folder, "draft, verification"),
            "under the rule": lambda content: _four(content["under the rule"], folder, "draft"),
        },
        "adaptation.json": {"adaptation": _adaptation, "pictures/training/adaptation.svg": _picture},
        "cheap_drafts.json": {"cheap drafts": cheap_drafts},
    }.items():
        if (folder / file).exists():
            content = read(folder / file)
            found |= {name: made(content) for name, made in parts.items()}
    return found


Group = tuple[str | None, str | None]


def _groups(content: Mapping[str, Any], start: str) -> dict[Group, list[dict[str, Any]]]:
    """Return the drafts of each loss and filter, one for each seed."""
    groups: dict[Group, list[dict[str, Any]]] = {}
    for each in content["drafts"]:
        if each["start"] == start:
            groups.setdefault((each["loss"], each["filter"]), []).append(each)
    return groups


def _steps(drafts: Sequence[Mapping[str, Any]], sampling: str) -> Numbers:
    """Return the mean steps of each text over the seeds, ``[texts]``."""
    return np.mean([each[sampling]["steps"] for each in drafts], axis=0)


def _length(drafts: Sequence[Mapping[str, Any]], sampling: str) -> Interval:
    """Return the acceptance length of some drafts together, with an interval over texts."""
    tokens = np.array(drafts[0][sampling]["texts"], dtype=np.float64)
    return ratio_of_sums(tokens, _steps(drafts, sampling))


def _ratio(drafts: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], sampling: str) -> Interval:
    """Return the ratio of two acceptance lengths on the same texts."""
    return ratio_of_sums(_steps(base, sampling), _steps(drafts, sampling))


def _by_seed(drafts: Sequence[Mapping[str, Any]], sampling: str) -> list[float]:
    return [each[sampling]["tokens"] / sum(each[sampling]["steps"]) for each in drafts]


def _real(drafts: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], sampling: str) -> str:
    """Say whether a difference is one: the texts' interval leaves 1 out, and every seed is on the same side of all."""
    ratio, mine, theirs = _ratio(drafts, base, sampling), _by_seed(drafts, sampling), _by_seed(base, sampling)
    if ratio.low > 1 and min(mine) > max(theirs):
        return "more"
    if ratio.high < 1 and max(mine) < min(theirs):
        return "less"
    return "–"


def _losses(content: Mapping[str, Any], start: str) -> str:
    groups = _groups(content, start)
    untrained, reference = groups[None, None], groups.get(("lk", None))
    rows = [["as it came", *(cell for each in SAMPLINGS for cell in (number(_length(untrained, each), 3), "", ""))]]
    for (loss, filter), drafts in groups.items():
        if loss is None:
            continue
        row = [f"`{loss}`" + ("" if filter is None else ", filtered")]
        for sampling in SAMPLINGS:
            seeds = _by_seed(drafts, sampling)
            told = "" if reference is None or drafts is reference else _real(drafts, reference, sampling)
            row += [number(_length(drafts, sampling), 3), f"{min(seeds):.2f} to {max(seeds):.2f}", told]
        rows.append(row)
    header = ["loss", "T = 1", "seeds", "than `lk`", "the paper's sampling", "seeds", "than `lk`"]
    return table(header, rows)


def _long(content: Mapping[str, Any]) -> str:
    """Return what long trainings gave losslessly, by both models' rows."""
    expected, rows = content["expected"], []
    untrained = [expected["as it came"]]
    for name, each in expected.items():
        cells = []
        for sampling in SAMPLINGS:
            ratio = "–" if name == "as it came" else number(_ratio([each], untrained, sampling), 3)
            cells += [number(_length([each], sampling), 3), ratio]
        took = content["took"].get(name)
        rows.append([name, *cells, "–" if took is None else f"{took['seconds'] / 60:.0f} ({took['threads']})"])
    header = ["draft", "T = 1", "÷ as it came", "the paper's sampling", "÷ as it came", "minutes (threads)"]
    return table(header, rows)


def _four(runs: Mapping[str, Any], folder: Path, what: str) -> str:
    """Return what each run gave, paired by problem with the first of them."""
    summaries = {each.config.asking(seed=0): each for each in summarise(read_results(folder / "four.jsonl"))}
    chosen = {name: summaries[RunConfig.from_dict(each)] for name, each in runs.items()}
    base, rows = next(iter(chosen.values())), []
    for name, each in chosen.items():
        score, time, *_ = compared(each.group, base.group)
        differences = [number(score, 3), number(tokens_ratio(each.group, base.group), 3), number(time, 3)]
        score_by, tokens_by, time_by = ["–"] * 3 if each is base else differences
        length, nats = str(each.config.num_speculative_tokens), number(each.metrics["nats_per_token"], 4)
        score_of, tokens_of = number(each.metrics["score"], 3), number(each.metrics["acceptance_length"], 2)
        rows.append([name, length, score_of, score_by, tokens_of, tokens_by, time_by, nats])
    header = [what, "length", "score", "− first", "tokens per step", "÷ first", "time ÷ first", "nats per token"]
    return table(header, rows)


def _adaptation(content: Mapping[str, Any]) -> str:
    rows = []
    for name, each in content["drafts"].items():
        first, last = slice(0, 100), slice(-100, None)
        share = f"{100 * each['seconds'] / each['response_seconds']:.1f} %" if "seconds" in each else "–"
        cells = [number(_answered(each["new"], part), 2) for part in (first, last)]
        rows.append([name, *cells, number(_answered(each["old"], slice(None)), 2), str(each.get("steps", "–")), share])
    header = ["draft", "first 100 stories", "last 100 stories", "usual families afterwards", "steps", "of the time"]
    return table(header, rows)


def _answered(made: Mapping[str, Sequence[int]], part: slice) -> Interval:
    """Return the acceptance length of some answers, with an interval over problems."""
    return ratio_of_sums(np.add(made["accepted"][part], made["steps"][part]), made["steps"][part])


def _picture(content: Mapping[str, Any]) -> str:
    """Return acceptance lengths over time, of windows of problems."""
    figure = new_figure()
    panel = figure.subplots()
    for name, each in content["drafts"].items():
        start, _, how = name.partition(" ")
        steps, accepted = np.array(each["new"]["steps"]), np.array(each["new"]["accepted"])
        ends = range(min(WINDOW, len(steps)), len(steps) + 1, 5)
        values = [1 + accepted[max(0, i - WINDOW) : i].sum() / steps[max(0, i - WINDOW) : i].sum() for i in ends]
        panel.plot(list(ends), values, color=COLOURS[start], linestyle="-" if how == "adapting" else ":", label=name)
    panel.set(xlabel=f"stories answered (each point: the {WINDOW} before)", ylabel="acceptance_length")
    panel.grid(alpha=0.3, color=GREY)
    panel.legend(fontsize=8)
    return to_svg(figure)
