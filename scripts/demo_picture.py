"""What a run of `cactus demo` found: regenerates the picture and the table of docs/tutorial.md.

    python scripts/demo_picture.py                 runs the demo (minutes), writes the result file, and renders
    python scripts/demo_picture.py --only-render   picture and table again, from the result file

Times compare what ran in turn on one machine: run it where nothing else runs. Needs matplotlib
(`pip install -e .[dev]`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from pages import ROOT, columns, put
from results import parse, read, write

from cactus_decoding.cli import main as command_line
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, to_svg

RESULT, PAGE = ROOT / "docs" / "results" / "demo.json", ROOT / "docs" / "tutorial.md"
SIZE = (8.6, 2.8)
COLOURS = ("#8a8a8a", "#000000", "#0072b2", "#e69f00", "#d55e00", "#009e73")
"""Of plain sampling, lossless, protected, unprotected, with a weak draft, and budgeted, out of Okabe and Ito's."""


def measure(problems: int) -> dict[str, Any]:
    """Run the demo; return its result without the texts."""
    written = io.StringIO()
    with redirect_stdout(written):
        if code := command_line(["demo", "--json", "--problems", str(problems)]):
            raise SystemExit(code)
    result: dict[str, Any] = json.loads(written.getvalue())
    for row in result["rows"]:
        del row["texts"], row["right_answers"]
    return result


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return bars of tokens per step and per second, and right answers with their intervals."""
    figure = new_figure(SIZE)
    panels = figure.subplots(1, 3, sharey=True)
    names, beside = [label(row) for row in rows], {"textcoords": "offset points", "fontsize": 8}
    titles = "tokens per step", "tokens per second", "right answers, % (95 % interval)"
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, fontsize=9)
        panel.tick_params(labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    for panel, key, digits in ((panels[0], "acceptance_length", 2), (panels[1], "tokens_per_second", 0)):
        values = [row["metrics"][key] for row in rows]
        panel.barh(names, values, color=COLOURS, height=0.62)
        for name, value in zip(names, values, strict=True):
            panel.annotate(f"{value:.{digits}f}", (value, name), (3, 0), va="center", **beside)
        panel.set_xlim(0, 1.2 * max(values))
    for name, row, colour in zip(names, rows, COLOURS, strict=True):
        value, low, high = (100 * each for each in (row["accuracy"], *row["accuracy_interval"]))
        panels[2].plot([low, high], [name, name], color=colour, lw=2)
        panels[2].plot([value], [name], marker="o", color=colour, ms=5)
        panels[2].annotate(f"{value:.1f}", (value, name), (0, 4), ha="center", **beside)
    panels[2].grid(axis="x", color=GREY, alpha=0.25)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return to_svg(figure)


def label(row: Mapping[str, Any]) -> str:
    """Return what a row is called in the picture."""
    length = row["num_speculative_tokens"]
    return f"{row['name'].replace('…', 'weak draft')}{f', {length} drafted' if length else ''}"


def table(result: Mapping[str, Any]) -> str:
    """Return the rows as a table for a page."""
    return columns(result["rows"], {
        "sampling": lambda row: row["name"].replace("…", "weak draft"),
        "drafted": lambda row: row["num_speculative_tokens"] or "–",
        "tokens per step": "{metrics[acceptance_length]:.2f}",
        "tokens per second": "{metrics[tokens_per_second]:.0f}",
        "right answers": "{right}/{answers}",
        "95 % interval": lambda row: "{:.1f} to {:.1f} %".format(*(100 * end for end in row["accuracy_interval"])),
    })  # fmt: skip


if __name__ == "__main__":
    given = parse(__doc__, problems=200, results=RESULT, page=PAGE, only_render=False)
    if not given.only_render:
        write(given.results, measure(given.problems), None)
    result = read(given.results)
    put(given.page, {"demo table": table(result), "images/demo.svg": picture(result["rows"])})
