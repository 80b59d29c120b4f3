"""What a run of `cactus demo` found: regenerates the picture and the table of docs/tutorial.md.

    python scripts/demo_picture.py                 runs the demo (minutes), writes the result file, and renders
    python scripts/demo_picture.py --only-render   picture and table again, from the result file

Times compare what ran in turn on one machine: run it where nothing else runs. Needs matplotlib
(`pip install -e .[dev]`).
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any

from pages import ROOT, columns, put
from results import parse, read, write

from cactus_decoding.cli import main as command_line
from cactus_decoding.cli.demo import TITLES
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, to_svg

RESULT, PAGE = ROOT / "docs" / "results" / "demo.json", ROOT / "docs" / "tutorial.md"
SIZE = (8.6, 2.8)
COLOURS = ("#8a8a8a", "#000000", "#0072b2", "#e69f00")
"""Of no draft, lossless, relaxed, and relaxed everywhere, out of Okabe and Ito's."""


def measure(problems: int) -> dict[str, Any]:
    """Run the demo, and return its result."""
    written = io.StringIO()
    with redirect_stdout(written):
        if code := command_line(["demo", "--json", "--problems", str(problems)]):
            raise SystemExit(code)
    result: dict[str, Any] = json.loads(written.getvalue())
    return result


def picture(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return bars of seconds per answer and tokens per step, and right answers with their intervals."""
    figure = new_figure(SIZE)
    panels = figure.subplots(1, 3, sharey=True)
    names, beside = [label(name, run) for name, run in runs.items()], {"textcoords": "offset points", "fontsize": 8}
    titles = "seconds per answer", "tokens per step", "right answers, % (95 % interval)"
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=9)
        panel.tick_params(labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    for panel, key, digits in ((panels[0], "seconds_per_answer", 3), (panels[1], "acceptance_length", 2)):
        values = [run["metrics"][key]["value"] for run in runs.values()]
        panel.barh(names, values, color=COLOURS, height=0.62)
        for name, value in zip(names, values, strict=True):
            panel.annotate(f"{value:.{digits}f}", (value, name), (3, 0), va="center", **beside)
        panel.set_xlim(0, 1.2 * max(values))
    for name, run, colour in zip(names, runs.values(), COLOURS, strict=True):
        value, low, high = (100 * run["metrics"]["score"][end] for end in ("value", "low", "high"))
        panels[2].plot([low, high], [name, name], color=colour, lw=2)
        panels[2].plot([value], [name], marker="o", color=colour, ms=5)
        panels[2].annotate(f"{value:.1f}", (value, name), (0, 4), ha="center", **beside)
    panels[2].grid(axis="x", color=GREY, alpha=0.25)
    panels[0].set_ylim(len(runs) - 0.4, -0.6)
    return to_svg(figure)


def label(name: str, run: Mapping[str, Any]) -> str:
    """Return what a run is called in the picture."""
    length = run["cell"]["num_speculative_tokens"]
    return f"{TITLES[name]}{f', {length} drafted' if length else ''}"


def table(result: Mapping[str, Any]) -> str:
    """Return the runs as a table for a page."""

    def shown(metric: str, digits: int, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
        return lambda run: interval(run["metrics"][metric], digits, scale)

    return columns([{"name": TITLES[name]} | run for name, run in result["runs"].items()], {
        "sampling": "{name}",
        "drafted": lambda run: run["cell"]["num_speculative_tokens"] or "–",
        "seconds per answer": "{metrics[seconds_per_answer][value]:.3f}",
        "time ÷ best lossless": shown("seconds_ratio", 2),
        "tokens per step": "{metrics[acceptance_length][value]:.2f}",
        "right answers, %": shown("score", 1, 100.0),
    })  # fmt: skip


def interval(found: Mapping[str, float], digits: int, scale: float) -> str:
    """Return a metric of a run with its interval."""
    value, *ends = (math.nan if found[end] is None else found[end] for end in ("value", "low", "high"))
    return Interval(value, *ends).shown(digits, scale=scale)


if __name__ == "__main__":
    given = parse(__doc__, problems=200, results=RESULT, page=PAGE, only_render=False)
    if not given.only_render:
        write(given.results, measure(given.problems), None)
    result = read(given.results)
    put(given.page, {"demo table": table(result), "images/demo.svg": picture(result["runs"])})
