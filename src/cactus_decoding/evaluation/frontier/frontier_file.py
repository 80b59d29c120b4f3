"""The result file of `cactus frontier`: checked when it is read, and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.frontier.families import FAMILIES
from cactus_decoding.evaluation.reporting.pictures import GREY, STYLES, new_figure, to_svg
from cactus_decoding.files.jsonl import INFINITIES, number_of

SCHEMA, KIND = 1, "frontier"


def read_frontier(path: str | Path) -> dict[str, Any]:
    """Return what a result file of `cactus frontier` holds.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is something else, naming file and line.
    """
    try:
        value = json.loads(Path(path).read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: this is not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is not a result of cactus frontier ({error.reason})") from None
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise ValueError(f"{path}: this is not a result of cactus frontier")
    if value.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema is {value.get('schema')!r}, but this version reads schema {SCHEMA}")
    missing = [name for name in ("settings", "visited", "problems", "points", "provenance") if name not in value]
    if missing:
        raise ValueError(f"{path}: the result of cactus frontier lacks {', '.join(missing)}")
    for number, point in enumerate(value["points"]):
        if not _is_point(point):
            raise ValueError(f"{path}: point {number} is not a point of a frontier")
    if [point["family"] for point in value["points"][:2]] != ["lossless", "limit"]:
        raise ValueError(f"{path}: the first two points must be the lossless one and the limit")
    return value


def _is_point(point: object) -> bool:
    if not isinstance(point, dict) or not all(isinstance(point.get(name), str) for name in ("rule", "family")):
        return False
    return all(
        isinstance(point.get(name), list)
        and len(point[name]) == 3
        and all(x is None or isinstance(x, (int, float)) or x in INFINITIES for x in point[name])
        for name in ("acceptance", "kl", "tv")
    )


def frontier_picture(result: Mapping[str, Any]) -> str:
    """Return acceptance against KL and against TV, all rules, as SVG."""
    figure = new_figure((9.5, 5.2))
    panels = figure.subplots(1, 2, sharey=True)
    lossless, limit = result["points"][:2]
    for panel, name, label in zip(panels, ("kl", "tv"), ("KL(emitted‖target), nats per position", "TV"), strict=True):
        panel.axhline(limit["acceptance"][0], color=GREY, lw=1, ls=":", label="most that any rule accepts")
        for family in dict.fromkeys(point["family"] for point in result["points"][2:]):
            points = [point for point in result["points"] if point["family"] == family]
            places = [(number_of(point[name][0]), point["acceptance"][0]) for point in points]
            shown = [place for place in places if math.isfinite(place[0])]
            if shown:
                label_of = FAMILIES[family].label if family in FAMILIES else family
                panel.plot(*zip(*shown, strict=True), **STYLES[family].line(), label=label_of)
        panel.plot([0], lossless["acceptance"][:1], "*", color="black", ms=11, label="lossless", zorder=5)
        panel.set(xlabel=label)
        panel.grid(alpha=0.3)
    for panel, smallest in zip(panels, (1e-4, 1e-3), strict=True):
        panel.set_xscale("symlog", linthresh=smallest)
        panel.set_xlim(left=-smallest / 5)  # room for what costs nothing
    panels[0].set(ylabel="acceptance per visited position")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return to_svg(figure)
