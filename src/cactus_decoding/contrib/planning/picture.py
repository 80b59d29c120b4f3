"""Replicas, or latencies, by the rate of requests."""

from __future__ import annotations

from collections.abc import Sequence

from cactus_decoding.contrib.planning.plan import Goal, Planned
from cactus_decoding.evaluation.reporting.pictures import GREY, new_figure, plain, style_of, to_svg

DASHES = ("-", "--", ":", "-.")


def plan_picture(found: Sequence[Planned], goal: Goal, *, fixed: bool) -> str:
    """Return a curve for each run as SVG: the replicas that keep the goal, or the latency of a fixed number."""
    figure = new_figure()
    panel = figure.subplots()
    runs: dict[str, list[Planned]] = {}
    for each in sorted(found, key=lambda each: each.rate):
        if each.served is not None:
            runs.setdefault(each.summary.config.label, []).append(each)
    drawn: dict[str, int] = {}
    for label, curve in runs.items():
        heights = [_height(each, goal, fixed) for each in curve]
        rule = curve[0].summary.config.rule
        turn = drawn[rule] = drawn.get(rule, -1) + 1  # a rule's curves, such as its lengths, differ by their dashes
        looks = style_of(rule).keywords() | {"linestyle": DASHES[turn % len(DASHES)]}
        panel.plot([each.rate for each in curve], heights, label=plain(label), **looks)
    up = f"seconds within which {100 * goal.share:g} % are answered" if fixed else "replicas"
    panel.set(xlabel="requests a second", ylabel=up, xscale="log", yscale="log")
    panel.grid(alpha=0.3, color=GREY)
    if runs:
        panel.legend(fontsize=8)
    return to_svg(figure)


def _height(planned: Planned, goal: Goal, fixed: bool) -> float:
    assert planned.served is not None
    assert planned.replicas is not None
    return planned.served.quantile(goal.share) if fixed else planned.replicas
