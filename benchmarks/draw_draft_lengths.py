"""Draws tokens per second over plain decoding by number of proposals, for every rule.

python benchmarks/draw_draft_lengths.py        the picture of the README and of docs/performance.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contenders import HERE

from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.reporting.pictures import GREY, STYLES, Style, new_figure, to_svg

PICTURE = HERE.parent / "docs" / "images" / "draft_lengths.svg"
PANELS = {
    "real_pair_bfloat16": "Qwen2.5-Coder 1.5B and 0.5B, bfloat16",
    "twins_bfloat16": "twins of 0.9B and 0.04B, bfloat16",
    "twins_float32": "twins of 0.9B and 0.04B, float32",
}
RULES = {
    "lossless": STYLES["lossless"],
    "Cactus 1": STYLES["cactus"],
    "clamped 2": STYLES["clamped"],
    "clamped 2, digits protected": Style("#009e73", "s"),
}
OTHERS = {"assisted": ("transformers' assisted generation", Style(GREY, "x"))}


def picture(panels: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a panel for each summary of draft_lengths.py, by its title."""
    figure = new_figure((4.3 * len(panels) + 1.2, 3.6))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        for rule, style in (RULES | {name: style for name, (_, style) in OTHERS.items()}).items():
            points = _points(found, rule)
            if not points:
                continue
            label = OTHERS[rule][0] if rule in OTHERS else rule
            axis.plot(*zip(*points, strict=True), label=label, **style.keywords())
            if rule in found["best"]:
                best = max(points, key=lambda point: point[1])
                axis.annotate(f"{best[1]:.1f}×", best, (6, 0), textcoords="offset points", va="center", fontsize=8,
                              color=style.colour)  # fmt: skip
        axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("proposed tokens per step", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, 17)
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("tokens per second,\nover plain decoding", fontsize=9)
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    return to_svg(figure)


def _points(found: Mapping[str, Any], rule: str) -> list[tuple[int, float]]:
    return sorted(
        (int(count), row["over_plain"][0])
        for name, row in found["cells"].items()
        for own, _, count in [name.partition("|")]
        if own == rule and count.isdigit()
    )


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PICTURE)
    given = parser.parse_args()
    found = {
        title: json.loads((HERE / "results" / f"{name}.json").read_text())["summary"] for name, title in PANELS.items()
    }
    write_atomically(given.output, picture(found))


if __name__ == "__main__":
    main()
