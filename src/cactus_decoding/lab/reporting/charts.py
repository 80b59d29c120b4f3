"""Charts of evaluations: what a rule gains against what it costs, each point with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cactus_decoding.core.files.jsonl import number_of
from cactus_decoding.core.request import SETTINGS
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.runs.summary import RunSummary
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from cactus_decoding.lab.reporting.pictures import (
    BAND,
    GREY,
    STYLES,
    family_of,
    literal,
    new_figure,
    parts_of,
    style_of,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = ("-", "--", ":", "-.")
_PROTECTED = {"linestyle": ":", "fillstyle": "top", "markerfacecoloralt": "white"}
"""How a family's protected curves differ from the others: dots, and half-filled markers."""
_MAX_LABELS = 40
_BESIDE = [(4, 4), (4, -11), (-17, 4), (-17, -11), (11, -4), (-24, -4), (4, 14), (4, -21), (-17, 14), (-17, -21)]
"""Where a point's label may be, in printer's points from it: the first free place is taken."""
TO_ALONE, TO_LOSSLESS = "seconds_ratio_to_target_alone", "seconds_ratio"


def score_picture(summaries: Sequence[RunSummary], band: Interval | None, interval: str = "95 % interval") -> str:
    figure = new_figure()
    panel = figure.subplots()
    if band is not None:
        panel.axhspan(band.low, band.high, color=BAND, label=f"target alone, {interval}")
        panel.axhline(band.value, color=GREY, lw=1)
    _scatter(panel, summaries, "acceptance_rate", "score")
    panel.set(xlabel="acceptance rate: accepted ÷ drafted", ylabel="score")
    _finish(figure, panel)
    return to_svg(figure)


def nats_picture(summaries: Sequence[RunSummary]) -> str:
    figure = new_figure()
    panel = figure.subplots()
    _scatter(panel, summaries, "nats_per_token", "acceptance_rate")
    panel.set_xscale("symlog", linthresh=1e-4)
    panel.set_xlim(left=-2e-5)  # room for what costs nothing
    panel.set(xlabel="nats per token, audited", ylabel="acceptance rate: accepted ÷ drafted")
    _finish(figure, panel)
    return to_svg(figure)


def length_picture(summaries: Sequence[RunSummary]) -> str:
    shown = [summary for summary in summaries if summary.metrics["length_ratio"] is not None]
    figure = new_figure((7.0, 1.2 + 0.28 * len(shown)))
    panel = figure.subplots()
    panel.axvline(1, color=GREY, lw=1)
    for place, summary in enumerate(shown):
        value = summary.known("length_ratio")
        look = style_of(summary.config.rule).keywords() | {"linestyle": "none"}
        panel.errorbar(value.value, place, xerr=_reach(value), capsize=2, **look)
    panel.set_yticks(range(len(shown)), [literal(summary.config.label) for summary in shown], fontsize=8)
    panel.invert_yaxis()
    panel.set(xlabel="length ratio: tokens per answer ÷ best lossless's")
    panel.grid(axis="x", alpha=0.3)
    return to_svg(figure)


def time_picture(panels: Mapping[str, Sequence[RunSummary]]) -> str:
    """Return normalised wall time per answer against draft length and rule, a panel for each pair of models."""
    columns = min(len(panels), 3)
    panel_rows = math.ceil(len(panels) / columns)
    size = (7.0, 5.0) if columns == 1 else (4.2 * columns, 3.4 * panel_rows + 1.2)
    figure = new_figure(size)
    drawn = figure.subplots(panel_rows, columns, sharey=True, squeeze=False).flatten()
    metric = time_metric(summary for summaries in panels.values() for summary in summaries)
    labels: dict[str, Any] = {}
    for panel, (name, summaries) in zip(drawn, panels.items(), strict=False):
        _times(panel, summaries, metric)
        panel.set(xlabel="proposals per step")
        if len(panels) > 1:
            panel.set_title(literal(name), fontsize=9)
        labels |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    for panel in drawn[len(panels) :]:
        panel.axis("off")
    drawn[0].set_ylim(bottom=0)  # only now: a limit keeps the shared axis from growing with further panels
    base = "the target alone's" if metric == TO_ALONE else "best lossless's"
    drawn[0].set(ylabel=f"wall time per answer ÷ {base}")
    figure.legend(
        labels.values(), labels.keys(), loc="outside lower center", ncols=2 if columns == 1 else 3, fontsize=8
    )
    return to_svg(figure)


def frontier_picture(result: Mapping[str, Any]) -> str:
    """Return acceptance against KL and against TV, all rules, as SVG."""
    lossless, limit = result["points"][:2]
    wide = bool(lossless.get("kept_by_children"))
    figure = new_figure((13.0 if wide else 9.5, 5.2))
    panels = figure.subplots(1, 2 + wide, sharey=True)
    if wide:
        _children(panels[2], result["points"])
    for panel, name, label in zip(
        panels[:2], ("kl", "tv"), ("KL(emitted‖target), nats per position", "TV"), strict=True
    ):
        panel.axhline(limit["acceptance"][0], color=GREY, lw=1, ls=":", label="most that any rule accepts")
        for (family, protected), points in _curves(result["points"][2:]).items():
            places = [(number_of(point[name][0]), point["acceptance"][0]) for point in points]
            shown = [place for place in places if math.isfinite(place[0])]
            if shown:
                label_of = FAMILIES[family].label if family in FAMILIES else family
                look = STYLES[family].keywords() | (_PROTECTED if protected else {})
                panel.plot(*zip(*shown, strict=True), **look, label=f"{label_of}{protected}")
        panel.plot([0], lossless["acceptance"][:1], "*", color="black", ms=11, label="lossless", zorder=5)
        panel.set(xlabel=label)
        panel.grid(alpha=0.3)
    for panel, smallest in zip(panels, (1e-4, 1e-3), strict=False):
        panel.set_xscale("symlog", linthresh=smallest)
        panel.set_xlim(left=-smallest / 5)  # room for what costs nothing
    panels[0].set(ylabel="acceptance per visited position")
    handles, labels = panels[0].get_legend_handles_labels()
    if wide:
        more = panels[2].get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return to_svg(figure)


def _children(panel: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    """Draw how often one of several children is kept: losslessly, and at each family's middle knob."""
    curves = _curves(points[2:])
    shown = [(STYLES["lossless"], points[0]), (STYLES["lossless"]._replace(hollow=True), points[0])]
    shown += [(STYLES[family], curve[len(curve) // 2]) for (family, said), curve in curves.items() if not said]
    for place, (style, point) in enumerate(shown):
        drawn = place != 1
        kept = [each[0] for each in point["kept_by_children" if drawn else "kept_by_fixed_children"]]
        label = None if place > 1 else f"lossless, {'one child drawn' if drawn else 'no child drawn'}"
        panel.plot(
            range(1, len(kept) + 1), kept, **style.keywords() | {"linestyle": "-" if drawn else ":"}, label=label
        )
    panel.set(xlabel="children of a node (families at their middle knob)")
    panel.grid(alpha=0.3)


def _curves(points: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return points by their family and the words on their protection.

    >>> list(_curves([{"family": "clamped", "protect": "digits"}, {"family": "clamped"}]))
    [('clamped', ', protecting digits'), ('clamped', '')]
    """
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    usual = SETTINGS["protect_threshold"].default
    for point in points:
        said = ""
        if point.get("protect"):
            said = f", protecting {literal(point['protect'])}"
            if (threshold := point.get("protect_threshold", usual)) != usual:
                said += f" above {threshold}"
        found.setdefault((point["family"], said), []).append(point)
    return found


def time_metric(summaries: Any) -> str:
    """Return the normalised time that all summaries have: to the target alone, else to the best lossless setting."""
    return TO_ALONE if all(summary.metrics[TO_ALONE] is not None for summary in summaries) else TO_LOSSLESS


def _without_length(summary: RunSummary) -> str:
    return summary.config.label.rpartition(" ×")[0]


def _times(panel: Axes, summaries: Sequence[RunSummary], metric: str) -> None:
    panel.axhline(1, color=GREY, lw=1)
    speculative = [summary for summary in summaries if summary.config.num_speculative_tokens != 0]
    shown = [summary for summary in speculative if summary.metrics[metric] is not None]
    places = _places([summary.config.num_speculative_tokens for summary in shown])
    panel.set_xticks(list(places.values()), [_in_lines(length) for length in places])
    names = list(dict.fromkeys(_without_length(summary) for summary in shown))
    used: dict[str, int] = {}
    for number, name in enumerate(names):
        ours = [summary for summary in shown if _without_length(summary) == name]
        family = family_of(ours[0].config.rule)
        dash = DASHES[used.setdefault(family, 0) % len(DASHES)]
        used[family] += 1
        aside = 0.08 * (number - (len(names) - 1) / 2)  # so that one interval does not hide another
        for kind, line in ((int, dash), (str, "none")):  # a draft length that adapts is on no line between numbers
            part = [summary for summary in ours if isinstance(summary.config.num_speculative_tokens, kind)]
            part.sort(key=lambda summary: places[summary.config.num_speculative_tokens])
            values = [summary.known(metric) for summary in part]
            if part:
                panel.errorbar(
                    [places[summary.config.num_speculative_tokens] + aside for summary in part],
                    [value.value for value in values],
                    yerr=[list(ends) for ends in zip(*(_reach_pair(value) for value in values), strict=True)],
                    capsize=2,
                    label=literal(name),
                    **style_of(ours[0].config.rule).keywords() | {"linestyle": line},
                )
    panel.grid(alpha=0.3)


def _places(lengths: Sequence[int | str]) -> dict[int | str, float]:
    """Return where draft lengths are on an axis: numbers at their value, others to the right of them.

    >>> _places([4, "auto", 2])
    {2: 2.0, 4: 4.0, 'auto': 6.0}
    """
    numbers = sorted({length for length in lengths if isinstance(length, int)})
    others = dict.fromkeys(length for length in lengths if isinstance(length, str))
    right = float(max(numbers, default=0))
    found: dict[int | str, float] = {length: float(length) for length in numbers}
    return found | {name: right + 2 * place for place, name in enumerate(others, start=1)}


def _in_lines(length: int | str) -> str:
    r"""Return the tick label of a draft length, in several lines for a tree, whose spelling is wide.

    >>> _in_lines("tree:static=4.2,drawn=2"), _in_lines(6)
    ('tree:\nstatic=4.2,\ndrawn=2', '6')
    """
    return "\n".join(map(literal, parts_of(str(length))))


def _scatter(panel: Axes, summaries: Sequence[RunSummary], across: str, up: str) -> None:
    shown = [
        summary for summary in summaries if summary.metrics[across] is not None and summary.metrics[up] is not None
    ]
    seen: set[str] = set()
    for summary in shown:
        x, y = summary.known(across), summary.known(up)
        if not (math.isfinite(x.value) and math.isfinite(y.value)):
            continue
        family = family_of(summary.config.rule)
        look = style_of(summary.config.rule).keywords() | {"linestyle": "none"}
        label = None if family in seen else literal(family.replace("_", " "))
        seen.add(family)
        panel.errorbar(x.value, y.value, xerr=_reach(x), yerr=_reach(y), capsize=2, elinewidth=0.8, label=label, **look)
        if len(shown) <= _MAX_LABELS:
            panel.annotate(f"×{summary.config.num_speculative_tokens}", (x.value, y.value), _BESIDE[0],
                           textcoords="offset points", fontsize=8, color=GREY)  # fmt: skip


def _finish(figure: Any, panel: Axes) -> None:
    panel.grid(alpha=0.3)
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    _spread(figure, panel)


def _spread(figure: Any, panel: Axes) -> None:
    """Put each point's label where no other text is; if there is no such place, remove the label."""
    figure.draw_without_rendering()  # only then is it known how large a text is
    frame, taken = panel.get_window_extent(), list[Any]()
    for label in list(panel.texts):
        for beside in _BESIDE:
            label.set_position(beside)
            box = label.get_window_extent()
            inside = frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            label.remove()


def _reach_pair(value: Interval) -> tuple[float, float]:
    """Return how far the interval reaches below and above; zero if it has no ends."""
    below, above = value.value - value.low, value.high - value.value
    return (max(0.0, below), max(0.0, above)) if math.isfinite(below + above) else (0.0, 0.0)


def _reach(value: Interval) -> list[list[float]]:
    return [[end] for end in _reach_pair(value)]
