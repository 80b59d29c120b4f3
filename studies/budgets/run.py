"""What budgets cost and buy on the bundled pair: regenerates the table and the picture of docs/studies/budgets.md.

    python -m studies.budgets.run                 everything: about an hour on one core, can be continued
    python -m studies.budgets.run --only-render   table and picture again, from the result file

Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

import json
import math
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

from cactus_decoding import Budget, Pair, generate, load_pair
from cactus_decoding.lab.evaluation.runs.results import Journal, journal_of
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import WordProblem, word_problems
from scripts.pages import columns
from studies.shown import Axes, picture
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "budgets.json.gz"
BUDGETS = (0.005, 0.02, 0.1, 0.5, 2.0, 5.0)
RULE = "clamped:width=2.0"
LOOKS = {"greedy": ("#d55e00", "o", 0.97), "paced": ("#0072b2", "s", 1.03)}
"""Colour, marker, and a factor of the budget, so that bars do not overlap."""


def measure(given: Namespace) -> dict[str, Any]:
    """Answer the problems with every setting: arguments of `generate` in JSON types."""
    settings: list[dict[str, Any]] = [
        {"name": "lossless", "rule": "lossless", "nats": None},
        {"name": "lossless, block", "rule": "lossless", "nats": None, "verification": "block"},
        {"name": "unlimited", "rule": RULE, "nats": "inf"},
    ]
    for nats in BUDGETS:
        greedy = {"name": "greedy", "rule": RULE, "nats": nats}
        settings += [greedy, greedy | {"name": "paced", "expected_tokens": given.expected_tokens}]
    pair = load_pair(draft="bundled:draft")
    problems = list(islice(word_problems("test", given.seed), given.problems))
    keys = [json.dumps([setting, given.problems, given.seed]) for setting in settings]
    journal, done = Journal(journal_of(given.results)), list[str]()
    try:  # what is finished is kept, for the same command to go on from
        for key, setting in zip(keys, settings, strict=True):
            if not journal.entries(key):
                journal.add(key, answered(setting, problems, pair, given.seed))
        found = [journal.entries(key)[0] for key in keys]
        done = keys
    finally:
        journal.finish(done)
    return {"settings": found}


def answered(setting: dict[str, Any], problems: list[WordProblem], pair: Pair, seed: int) -> dict[str, Any]:
    """Answer the problems with one setting; raise `AssertionError` if a response overspends."""
    budget, score, spent = None, Score(), []
    if setting["nats"] is not None:
        budget = Budget(nats=float(setting["nats"]), expected_tokens=setting.get("expected_tokens"))
    how = {"rule": setting["rule"], "budget": budget, "verification": setting.get("verification", "token")}
    for i, problem in enumerate(track(problems, f"{setting['name']} {setting['nats'] or ''}")):
        response = generate(pair, problem.prompt, seed=seed + i, **how)
        score.add(problem, response)
        spent.append(response.metrics.nats)
    if budget is not None and max(spent) > budget.limit:
        raise AssertionError(f"a response spent {max(spent)} nats of {budget.limit}")
    return {"setting": setting, "score": score.as_dict(), "most_nats": max(spent)}


def shown(result: dict[str, Any]) -> dict[str, str]:
    """Return the table, and the picture: score and acceptance length against the budget, with 95 % intervals."""
    rows = [Row(**each) for each in result["settings"]]
    lossless, block, *_ = rows

    def scores(axes: Axes) -> None:
        axes.axhspan(*lossless.score["accuracy_interval"], color="0.9", label="lossless, 95 %")
        axes.axhline(lossless.score["accuracy"], color="0.4", lw=1)
        promised = [lossless.score["accuracy"] - Budget(nats=nats).shift for nats in BUDGETS]
        axes.plot(BUDGETS, promised, color="0.4", ls="--", label="lowest score that the budget allows")
        for name, (colour, marker, aside) in LOOKS.items():
            found = [row.score for row in rows if row.setting["name"] == name]
            values, ends = (np.array([row[key] for row in found]) for key in ("accuracy", "accuracy_interval"))
            reach = [values - ends[:, 0], ends[:, 1] - values]
            places = [nats * aside for nats in BUDGETS]
            axes.errorbar(places, values, reach, color=colour, marker=marker, capsize=3, label=name)
        axes.set(ylabel="right answers", xscale="log", ylim=(0, 1.02))

    def lengths(axes: Axes) -> None:
        axes.axhline(lossless.length, color="0.4", lw=1, label="lossless")
        axes.axhline(block.length, color="0.4", lw=1, ls=":", label="lossless, block verification")
        for name, (colour, marker, _) in LOOKS.items():
            found = [row.length for row in rows if row.setting["name"] == name]
            axes.plot(BUDGETS, found, color=colour, marker=marker, label=name)
        axes.set(xlabel="budget per answer, nats", ylabel="acceptance_length", xscale="log")

    heads = {
        "setting": lambda row: row.setting["name"],
        "budget, nats": lambda row: "–" if row.limit is None else "none" if row.limit == math.inf else f"{row.limit:g}",
        "promised shift ≤": lambda row: "0" if row.limit is None else f"{Budget(nats=row.limit).shift:.3f}",
        "right answers (95 %)": lambda row: (
            "{right}/{answers} ({accuracy_interval[0]:.3f} to {accuracy_interval[1]:.3f})".format(**row.score)
        ),
        "shift from lossless": lambda row: (
            f"{(row.score['right'] - lossless.score['right']) / row.score['answers']:+.3f}"
        ),
        "acceptance_length": lambda row: f"{row.length:.3f}",
        "nats per answer, mean (most)": lambda row: (
            "0" if row.limit is None
            else f"{row.metrics['nats'] / row.score['answers']:.4f} ({row.most_nats:.4f})"
        ),
        "fallen back": lambda row: (
            f"{row.metrics['fell_back'] / row.metrics['metered']:.1%}" if row.metrics["metered"] else "–"
        ),
    }  # fmt: skip
    return {
        "budget study": columns(rows, heads),
        "pictures/budgets.svg": picture(scores, lengths, size=(7, 6), columns=1),
    }


class Row(NamedTuple):
    """What a setting brought, as `Score` says it."""

    setting: dict[str, Any]
    score: dict[str, Any]
    most_nats: float

    @property
    def limit(self) -> float | None:
        return None if self.setting["nats"] is None else float(self.setting["nats"])

    @property
    def metrics(self) -> dict[str, Any]:
        return self.score["metrics"]  # type: ignore[no-any-return]

    @property
    def length(self) -> float:
        return float(self.metrics["acceptance_length"])


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/budgets.md", measure, shown,
        problems=(500, "held-out problems of each setting"),
        seed=(0, "of the problems; problem i is answered with seed + i"),
        expected_tokens=(60, "length that pacing spreads a budget over"),
    )  # fmt: skip
