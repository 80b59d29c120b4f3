"""How many replicas recorded answers would take at some rates, by rule and draft length, and how long users wait.

    python -m studies.planning.plan RESULT.jsonl… --costs costs.json --rates 2 8 --latency 1.5
    python -m studies.planning.plan RESULT.jsonl… --paper gpu=h100,target=8.2e9,draft=0.6e9 --rates 1000 --latency 5

RESULT.jsonl are result files of `cactus eval`, which say how many steps each answer took. What a step takes is measured
(--costs), or worked out from a GPU's data sheet (--paper). An event simulation does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, plain, style_of, to_svg
from cactus_decoding.lab.reporting.report import read_all
from scripts.pages import table as as_table
from scripts.results import parser, write
from studies.planning.costs import Paper, read_costs, read_paper
from studies.planning.replicas import Fleet, Goal, Planned, fixed_length, plan, planned_runs

DASHES = ("-", "--", ":", "-.")


def table(found: Sequence[Planned], rate: float, goal: Goal) -> str:
    """Return what runs take at one rate as a table of Markdown, the fewest replicas first."""
    rows = []
    for each in found:
        score, served = each.summary.metrics["score"], each.served
        cells = ["no number", "–", "–", "–", "–"]
        if served is not None:
            times = (f"{served.quantile(level):.2f} s" for level in (0.5, goal.share))
            cells = [f"{each.replicas:,}", *times, f"{100 * served.busy:.0f} %", f"{served.batch:.1f}"]
        cells.append("–" if score is None else f"{score.value:.3f}")
        rows.append([each.summary.config.label, *cells])
    share = f"{100 * goal.share:g} % within"
    head = ("run", "replicas", "half within", share, "busy", "batch", "score")
    return f"{rate:g} requests a second, {share} {goal.latency:g} s\n\n{as_table(head, rows)}"


def picture(found: Sequence[Planned], goal: Goal, *, fixed: bool) -> str:
    """Return a curve for each run as SVG: the replicas that keep the goal, or the latency of a fixed number."""
    figure = new_figure()
    panel = figure.subplots()
    runs: dict[str, list[Planned]] = {}
    for each in sorted(found, key=lambda each: each.rate):
        if each.served is not None:
            runs.setdefault(each.summary.config.label, []).append(each)
    drawn: dict[str, int] = {}
    for label, curve in runs.items():
        heights = [each.served.quantile(goal.share) if fixed else each.replicas for each in curve]
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan, print a table for each rate, and write what is asked for."""
    made = parser(
        __doc__,
        results=([Path], "result files of cactus eval"),
        costs=(None, "a JSON file of measured times", {"type": Path}),
        paper=(None, f"a GPU on paper: {', '.join(Paper.__dataclass_fields__)}", {"type": read_paper}),
        rates=([], "requests a second", {"type": float, "nargs": "+", "required": True}),
        latency=(None, "seconds within which answers are to be complete", {"type": float, "required": True}),
        share=(0.95, "of the answers, in (0, 1)"),
        max_batch=(64, "requests that share a replica's step at most"),
        replicas=(None, "work out the latencies of so many replicas instead", {"type": int}),
        seed=(0, "of arrivals"),
        picture=(None, "draw replicas, or latencies, by rate as SVG", {"type": Path}),
        output=(None, "write the result with its provenance as JSON", {"type": Path}),
    )
    given = made.parse_args(arguments)
    if (given.costs is None) == (given.paper is None):
        made.error("give --costs or --paper")
    rates, goal = sorted(set(given.rates)), Goal(given.latency, given.share)
    summaries = [each for _, file in read_all(given.results) for each in summarise(file)]
    lengths = {length for each in summaries if (length := fixed_length(each.config)) is not None}
    known = read_costs(given.costs) if given.costs else given.paper.costs(lengths, max_batch=given.max_batch)
    runs, others = planned_runs(summaries, known)
    found = plan(runs, Fleet(known, given.max_batch, given.seed), rates, goal, replicas=given.replicas)
    for rate in rates:
        print(table([one for one in found if one.rate == rate], rate, goal), end="\n\n")
    if others:
        print(f"{len(others)} runs are left out: the costs do not tell what their steps take.")
    if given.output is not None:
        about = {
            name: value if isinstance(value, (int, float, list)) else str(value) for name, value in vars(given).items()
        }
        write(
            given.output, {"plan": [each.as_dict() for each in found]}, about | {"results": [*map(str, given.results)]}
        )
    if given.picture is not None:
        write_atomically(given.picture, picture(found, goal, fixed=given.replicas is not None))


if __name__ == "__main__":
    main()
