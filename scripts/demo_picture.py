"""What a run of `cactus demo` found: regenerates the picture and the table of docs/tutorial.md.

    python scripts/demo_picture.py                 runs the demo (minutes), writes the result file, and renders
    python scripts/demo_picture.py --only-render   picture and table again, from the result file

Times compare what ran in turn on one machine: run it where nothing else runs. Needs matplotlib
(`pip install -e .[dev]`).
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pages import insert
from pages import table as as_table

from cactus_decoding.cli import main as command_line
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, to_svg

ROOT = Path(__file__).resolve().parents[1]
RESULT, PICTURE = ROOT / "docs/results/demo.json", ROOT / "docs/images/demo.svg"
PAGE = ROOT / "docs/tutorial.md"
PROBLEMS = 200
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
    names = [label(row) for row in rows]
    for panel, (title, values, digits) in zip(
        panels,
        (
            ("tokens per step", [row["metrics"]["acceptance_length"] for row in rows], 2),
            ("tokens per second", [row["metrics"]["tokens_per_second"] for row in rows], 0),
            ("right answers, % (95 % interval)", [100 * row["accuracy"] for row in rows], 1),
        ),
        strict=True,
    ):
        panel.set_title(title, fontsize=9)
        panel.tick_params(labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
        if title.startswith("right"):
            continue
        panel.barh(names, values, color=COLOURS, height=0.62)
        for name, value in zip(names, values, strict=True):
            panel.annotate(f"{value:.{digits}f}", (value, name), (3, 0), textcoords="offset points", va="center",
                           fontsize=8)  # fmt: skip
        panel.set_xlim(0, 1.2 * max(values))
    for name, row, colour in zip(names, rows, COLOURS, strict=True):
        low, high = row["accuracy_interval"]
        panels[2].plot([100 * low, 100 * high], [name, name], color=colour, lw=2)
        panels[2].plot([100 * row["accuracy"]], [name], marker="o", color=colour, ms=5)
        panels[2].annotate(f"{100 * row['accuracy']:.1f}", (100 * row["accuracy"], name), (0, 4), ha="center",
                           textcoords="offset points", fontsize=8)  # fmt: skip
    panels[2].grid(axis="x", color=GREY, alpha=0.25)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return to_svg(figure)


def label(row: Mapping[str, Any]) -> str:
    """Return what a row is called in the picture."""
    length = row["num_speculative_tokens"]
    return f"{row['name'].replace('…', 'weak draft')}{f', {length} drafted' if length else ''}"


def table(result: Mapping[str, Any]) -> str:
    """Return the rows as a table for a page."""
    names = ("sampling", "drafted", "tokens per step", "tokens per second", "right answers", "95 % interval")
    rows = []
    for row in result["rows"]:
        counts, (low, high) = row["metrics"], row["accuracy_interval"]
        cells = [
            row["name"].replace("…", "weak draft"),
            str(row["num_speculative_tokens"] or "–"),
            f"{counts['acceptance_length']:.2f}",
            f"{counts['tokens_per_second']:.0f}",
            f"{row['right']}/{row['answers']}",
            f"{100 * low:.1f} to {100 * high:.1f} %",
        ]
        rows.append(cells)
    return as_table(names, rows)


def main() -> None:
    """Measure unless told otherwise, and render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--results", type=Path, default=RESULT, help="the result file")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--page", type=Path, default=PAGE, help="whose table between marks is replaced")
    parser.add_argument("--only-render", action="store_true")
    given = parser.parse_args()
    if not given.only_render:
        given.results.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(given.results, as_json(measure(given.problems), indent=1) + "\n")
    result = json.loads(given.results.read_text())
    given.picture.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.picture, picture(result["rows"]))
    write_atomically(given.page, insert(given.page.read_text(), "demo table", table(result)))


if __name__ == "__main__":
    main()
