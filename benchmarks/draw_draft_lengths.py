"""Draws tokens per second over plain decoding by number of proposals, for every rule.

python benchmarks/draw_draft_lengths.py        the pictures of the README and of docs/performance.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pairing import RESULTS, ROOT, parse, read

from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.reporting.pictures import GREY, STYLES, Style, new_figure, to_svg

PICTURE = ROOT / "docs" / "images" / "draft_lengths.svg"
PANELS = {
    "real_pair_bfloat16": "Qwen2.5-Coder 1.5B and 0.5B, bfloat16",
    "twins_bfloat16": "twins of 0.9B and 0.04B, bfloat16",
    "twins_float32": "twins of 0.9B and 0.04B, float32",
}
LINES = {
    "lossless": ("lossless", STYLES["lossless"]),
    "Cactus 1": ("Cactus 1", STYLES["cactus"]),
    "clamped 2": ("clamped 2", STYLES["clamped"]),
    "clamped 2, digits protected": ("clamped 2, digits protected", Style("#009e73", "s")),
    "assisted": ("transformers' assisted generation", Style(GREY, "x")),
}


def picture(panels: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a panel for each summary of draft_lengths.py, by its title."""
    figure = new_figure((4.3 * len(panels) + 1.2, 3.6))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, found) in zip(axes, panels.items(), strict=True):
        labels, lines = list[tuple[float, float, str]](), {name: points(found, name) for name in LINES}
        top = max(height for name in found["best"] for _, height in lines[name])
        for name, (label, style) in LINES.items():
            if lines[name]:
                axis.plot(*zip(*lines[name], strict=True), label=label, **style.keywords())
            if name in found["best"]:
                labels.append((*max(lines[name], key=lambda point: point[1]), style.colour))
        last = max(count for count, _, _ in labels)
        for count, height, place, colour in spread(labels, top / 14):
            beside = (count + 0.5, place) if count == last else (count, place - top / 14)  # else it would be on a line
            axis.annotate(f"{height:.1f}×", (count, height), beside, va="center", fontsize=8, color=colour)
        axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("proposed tokens per step", fontsize=9)
        axis.set_ylim(0, 1.05 * top)
        axis.set_xlim(0, last + 2)
        axis.set_xticks(sorted({count for name in found["best"] for count, _ in lines[name]}))
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("tokens per second,\nover plain decoding", fontsize=9)
    named = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0].legend([*named.values()], [*named], fontsize=8, frameon=False, loc="lower right")
    return to_svg(figure)


def spread(labels: Sequence[tuple[float, float, str]], least: float) -> list[tuple[float, float, float, str]]:
    """Return points with their colours and a height for each label, of which no two are nearer than ``least``.

    >>> spread([(11, 2.0, "red"), (3, 1.5, "black"), (11, 1.9, "blue")], 0.3)
    [(11, 2.0, 2.0, 'red'), (11, 1.9, 1.7, 'blue'), (3, 1.5, 1.5, 'black')]
    """
    placed: list[tuple[float, float, float, str]] = []
    for count, height, colour in sorted(labels, key=lambda each: -each[1]):
        above = [place for at, _, place, _ in placed if at == count]
        placed.append((count, height, min([height, *(round(place - least, 6) for place in above)]), colour))
    return placed


def points(found: Mapping[str, Any], line: str) -> list[tuple[int, float]]:
    return sorted(
        (int(count), row["over_plain"][0])
        for name, row in found["cells"].items()
        for own, _, count in [name.partition("|")]
        if own == line and count.isdigit()
    )


if __name__ == "__main__":
    output = parse(__doc__, output=PICTURE).output
    found = {title: read(RESULTS / f"{name}.json")["summary"] for name, title in PANELS.items()}
    first, *_ = found
    write_atomically(output, picture(found))
    write_atomically(output.with_stem(f"{output.stem}_real_pair"), picture({first: found[first]}))
