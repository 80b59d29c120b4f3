"""`cactus plan`: how many replicas the runs of a result file would take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import number
from cactus_decoding.cli.options import OUTPUT, RUNNING, option
from cactus_decoding.cli.progress import counting

if TYPE_CHECKING:
    from cactus_decoding.contrib.planning.plan import Goal, Planned

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus plan results.jsonl --costs costs.json --rate 2 --rate 8 --latency 1.5\n\n"
    "cactus plan results.jsonl --costs paper:gpu=h100,target=8.2e9,draft=0.6e9,cache_bytes=147456,context=600 "
    "--rate 1000 --latency 5 --picture plan.svg"
)
ASKED = "What is asked"


def plan(
    results: Annotated[list[Path], typer.Argument(help="Result files of cactus eval.", metavar="RESULT.jsonl…")],
    rate: Annotated[list[float], option("Requests a second; give it again for another rate.", "R", ASKED)],
    latency: Annotated[float, option("Answers are to be complete within so long.", "SECONDS", ASKED)],
    costs: Annotated[str, option(
        "What a step takes: a JSON file of measured times, or a GPU on paper.", "COSTS", ASKED)],
    share: Annotated[float, option("Of the answers, in (0, 1).", "P", ASKED)] = 0.95,
    max_batch: Annotated[int, option(
        "Requests that share a replica's step at most.", "N", ASKED, min=1, max=4096)] = 64,
    replicas: Annotated[int | None, option(
        "Work out the latencies of so many replicas instead.", "N", ASKED, shown="the fewest that keep it", min=1,
        max=100000)] = None,
    seed: Annotated[int, option("Of arrivals.", "S", RUNNING, min=0)] = 0,
    picture: Annotated[Path | None, option(
        "Draw replicas, or latencies, by rate.", "FILE.svg", OUTPUT, shown="none")] = None,
    output: Annotated[Path | None, option(
        "Write the result, with its provenance, here.", "FILE", OUTPUT, shown="none")] = None,
) -> None:  # fmt: skip
    """Say how many replicas recorded runs would take, with which rule and draft length, and how long users wait.

    Asks how many machines users need, from what 'cactus eval' recorded. Which rule keeps a limit 'cactus calibrate'
    says.

    An event simulation: requests arrive at random, share a replica's steps in continuous batches, and take as many
    steps as the result files say. Needs the extra 'plan'.
    """
    from cactus_decoding.arguments.checks import check_number
    from cactus_decoding.arguments.extras import needing
    from cactus_decoding.contrib.planning.costs import costs_file, parse_costs
    from cactus_decoding.contrib.planning.picture import plan_picture
    from cactus_decoding.contrib.planning.plan import Fleet, Goal, fixed_length, planned_runs
    from cactus_decoding.contrib.planning.plan import plan as planned
    from cactus_decoding.evaluation.reporting.report import read_all
    from cactus_decoding.evaluation.runs.summary import summarise
    from cactus_decoding.files.provenance import provenance
    from cactus_decoding.files.writing import as_json, check_writable, write_atomically

    check_writable(picture, output, inputs=[*results, costs_file(costs)])
    options.check_suffix("--picture", picture, ".svg")
    for each in rate:
        check_number("rate", each, 0, math.inf, low_open=True, high_open=True)
    rates, goal = sorted(set(rate)), Goal(latency, share)
    with needing("cactus plan needs SimPy", "plan"):
        import simpy  # noqa: F401 - before any work
    summaries = [each for _, file in read_all(results) for each in summarise(file)]
    lengths = {length for each in summaries if (length := fixed_length(each.config)) is not None}
    known = parse_costs(costs, lengths, max_batch=max_batch)
    runs, others = planned_runs(summaries, known)
    with counting("Simulating", len(runs) * len(rates)) as report:
        found = planned(runs, Fleet(known, max_batch, seed), rates, goal, replicas=replicas, report=report)
    if output is not None:
        asked = {"results": [str(path) for path in results], "costs": costs, "rates": rates, "latency": latency,
                 "share": share, "max_batch": max_batch, "replicas": replicas, "seed": seed}  # fmt: skip
        content = {"plan": [each.as_dict() for each in found], "provenance": provenance(asked)}
        write_atomically(output, as_json(content, indent=1) + "\n")
    if picture is not None:
        write_atomically(picture, plan_picture(found, goal, fixed=replicas is not None))
    out = Console(highlight=False)
    for each in rates:
        out.print(_table([one for one in found if one.rate == each], each, goal))
    if others:
        out.print(f"{len(others)} runs are left out: the costs do not tell what their steps take.", soft_wrap=True)


def _table(found: list[Planned], rate: float, goal: Goal) -> Table:
    table = Table(title=f"{rate:g} requests a second, {100 * goal.share:g} % within {goal.latency:g} s",
                  box=SIMPLE_HEAD, title_justify="left")  # fmt: skip
    headings = ("run", "replicas", "half within", f"{100 * goal.share:g} % within", "busy", "batch", "score")
    for name in headings:
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for each in found:
        score, served = each.summary.metrics["score"], each.served
        cells = ["no number", "–", "–", "–", "–"]
        if served is not None:
            times = (f"{number(served.quantile(level), 2)} s" for level in (0.5, goal.share))
            cells = [f"{each.replicas:,}", *times, f"{100 * served.busy:.0f} %", f"{served.batch:.1f}"]
        table.add_row(each.summary.config.label, *cells, "–" if score is None else number(score.value, 3))
    return table
