"""How many replicas recorded answers would take at some rates, by rule and draft length, and how long users wait.

    python -m studies.planning.plan RESULT.jsonl… --costs costs.json --rates 2 8 --latency 1.5
    python -m studies.planning.plan RESULT.jsonl… --paper gpu=h100,target=8.2e9,draft=0.6e9 --rates 1000 --latency 5

RESULT.jsonl are result files of `cactus eval`, which say how many steps each answer took. What a step takes is measured
(--costs), or worked out from a GPU's data sheet (--paper). An event simulation does the rest.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from cactus_decoding.core.declared import Model
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from cactus_decoding.lab.reporting.pictures import literal, style_of
from cactus_decoding.lab.reporting.report import read_all
from scripts.pages import table as as_table
from scripts.results import parser
from studies.planning.fleet import Served, Workload, capacity, simulate, step_seconds
from studies.shown import Axes
from studies.shown import picture as picture_of

DASHES = ("-", "--", ":", "-.")
REQUESTS = 2000
"""So many are simulated at least, and five times as many as are in the fleet at once."""
MOST = 10_000_000
"""And so many at most."""
ROUNDING = 1e-9
"""By so much of it a latency, a sum of steps, may exceed the goal."""
Amount = Annotated[float, Field(ge=0, lt=math.inf)]


class Costs(NamedTuple):
    """Seconds of a step by the number of proposals, 0 without a draft, and by batch size; what a prompt adds to one."""

    steps: Mapping[int, Mapping[int, float]]
    prompt: float = 0.0


def read_costs(path: Path) -> Costs:
    """Return measured costs from a JSON file: ``{"steps": {"8": {"1": 0.012, "16": 0.031}}, "prompt": 0.004}``."""
    try:
        content = json.loads(path.read_text())
        steps = {
            int(length): {int(batch): float(seconds) for batch, seconds in table.items()}
            for length, table in content["steps"].items()
        }
        return Costs(steps, float(content.get("prompt", 0.0)))
    except (ValueError, KeyError, AttributeError, TypeError):
        shape = '{"steps": {"LENGTH": {"BATCH": SECONDS, …}, …}, "prompt": SECONDS}'
        raise ValueError(f"{path}: costs must be written as {shape}") from None


GPUS = {
    "a10g": (600e9, 70e12),
    "l4": (300e9, 121e12),
    "l40s": (864e9, 362e12),
    "a100": (2.039e12, 312e12),
    "h100": (3.35e12, 989e12),
    "h200": (4.8e12, 989e12),
    "b200": (8.0e12, 2250e12),
}
"""Bytes a second of memory and dense bfloat16 operations a second, by NVIDIA's data sheets: SXM and 80 GB where there
are several."""


class Paper(Model):
    """A replica that was never measured: one GPU, which reaches a share of its data sheet's limits.

    A pass over n tokens takes max(bytes moved / bandwidth, 2 parameters n / operations) / efficiency, and a step with
    k proposals k passes of the draft and one of the target over k + 1 tokens a request (the roofline of Williams et
    al. 2009). Bytes are the weights once, and each request's cache.
    """

    gpu: Literal["a10g", "l4", "l40s", "a100", "h100", "h200", "b200"]
    target: Annotated[float, Field(gt=0, lt=math.inf)]  # parameters that a token uses, here and of the draft
    draft: Amount = 0.0  # a look-up has none
    weight_bytes: Annotated[float, Field(gt=0, le=8)] = 2.0  # of a parameter
    cache_bytes: Amount = 0.0  # keys and values of a token in the target
    context: Amount = 0.0  # tokens of a request in the cache, on average
    prompt: Amount = 0.0  # tokens
    efficiency: Annotated[float, Field(gt=0, le=1)] = 0.6

    def costs(self, lengths: Iterable[int], *, max_batch: int) -> Costs:
        """Return the costs of steps of some numbers of proposals, up to a batch size."""
        bandwidth, operations = GPUS[self.gpu]

        def forward(parameters: float, tokens: int, cache: float = 0.0) -> float:
            moved = parameters * self.weight_bytes + cache
            return max(moved / bandwidth, 2 * parameters * tokens / operations) / self.efficiency

        def step(k: int, batch: int) -> float:
            verifying = forward(self.target, batch * (k + 1), batch * self.context * self.cache_bytes)
            return verifying + k * forward(self.draft, batch)

        sizes = range(1, max_batch + 1)
        reading = 2 * self.prompt * (self.target + self.draft) / operations / self.efficiency
        return Costs({k: {size: step(k, size) for size in sizes} for k in lengths}, reading)


def read_paper(text: str) -> Paper:
    """Return the replica that a text such as ``gpu=h100,target=8e9,draft=0.6e9`` describes."""
    parts = [part.split("=") for part in text.split(",")]
    if any(len(part) != 2 for part in parts) or len({name for name, *_ in parts}) < len(parts):
        raise ValueError(f"a GPU on paper is written as gpu=h100,target=8e9, each name once, but {text!r} is given")
    given: dict[str, Any] = {name: value if name == "gpu" else float(value) for name, value in parts}
    return Paper(**given)


class Goal(NamedTuple):
    """What users are promised: a share of the answers is complete within so many seconds."""

    latency: float
    share: float = 0.95

    def is_kept(self, latencies: np.ndarray) -> bool:
        """Say whether answers with these latencies keep it."""
        return bool(np.quantile(latencies, self.share) <= self.latency * (1 + ROUNDING))


class Planned(NamedTuple):
    """One run at one rate, requests a second, and the replicas that it takes.

    They are None where not even one for each simulated request keeps the goal.
    """

    summary: RunSummary
    rate: float
    replicas: int | None
    served: Served | None


def plan(
    summaries: Sequence[RunSummary], costs: Costs, max_batch: int, rates: Sequence[float], goal: Goal,
    replicas: int | None = None,
) -> list[Planned]:  # fmt: skip
    """Return, for each rate, what each run would take, the fewest replicas that keep a goal first.

    The latencies of a fixed number of replicas are worked out instead, if one is given. Runs are left out whose steps
    the costs do not tell, as those that propose now more, now less.
    """
    known = [each for each in summaries if each.config.num_speculative_tokens in costs.steps]
    if not known:
        lengths = ", ".join(map(str, sorted(costs.steps)))
        there = ", ".join(dict.fromkeys(str(each.config.num_speculative_tokens) for each in summaries))
        raise ValueError(f"the costs are those of {lengths} proposals, but the runs have {there}")
    found = [_planned(summary, costs, max_batch, rate, goal, replicas) for rate, summary in product(rates, known)]

    def order(each: Planned) -> tuple[int, float, float]:
        wait = math.inf if each.served is None else each.served.quantile(goal.share)
        return rates.index(each.rate), each.replicas or math.inf, wait

    return sorted(found, key=order)


def _planned(
    summary: RunSummary, costs: Costs, max_batch: int, rate: float, goal: Goal, replicas: int | None
) -> Planned:
    seconds = step_seconds(costs.steps[int(summary.config.num_speculative_tokens)], max_batch)
    steps = np.concatenate([result.column("steps") for result in summary.group.results]).astype(np.int64)
    latency = goal.latency if replicas is None else seconds[1] * float(steps.mean()) + costs.prompt
    if 5 * rate * latency > MOST:
        raise ValueError(
            f"{rate:g} requests a second that take up to {latency:g} s are too many to simulate: at most "
            f"{MOST // 5:,} may be under way"
        )
    workload = Workload(rate, steps, max(REQUESTS, math.ceil(5 * rate * latency)))

    @cache
    def served(count: int) -> Served:
        return simulate(workload, seconds, replicas=count, prompt=costs.prompt)

    if replicas is not None:
        return Planned(summary, rate, replicas, served(replicas))
    if not goal.is_kept(min(seconds[1:]) * workload.drawn[1][workload.measured] + costs.prompt):  # if nobody waited
        return Planned(summary, rate, None, None)
    least = math.ceil(rate / capacity(seconds, float(steps.mean()), costs.prompt))
    counts = range(least, max(least, workload.count) + 1)  # more of them do better
    place = bisect_left(counts, True, key=lambda count: goal.is_kept(served(count).latencies))
    return Planned(summary, rate, *((counts[place], served(counts[place])) if place < len(counts) else (None, None)))


def table(found: Sequence[Planned], rate: float, goal: Goal) -> str:
    """Return what runs take at one rate as a table of Markdown, the fewest replicas first."""
    rows = []
    for each in found:
        cells = ["no number", "–", "–", "–", "–"]
        if (served := each.served) is not None:
            times = (f"{served.quantile(level):.2f} s" for level in (0.5, goal.share))
            cells = [f"{each.replicas:,}", *times, f"{100 * served.busy:.0f} %", f"{served.batch:.1f}"]
        score = each.summary.metrics["score"]
        rows.append([each.summary.config.label, *cells, "–" if score is None else f"{score.value:.3f}"])
    share = f"{100 * goal.share:g} % within"
    head = ("run", "replicas", "half within", share, "busy", "batch", "score")
    return f"{rate:g} requests a second, {share} {goal.latency:g} s\n\n{as_table(head, rows)}"


def picture(found: Sequence[Planned], goal: Goal, *, fixed: bool) -> str:
    """Return a curve for each run as SVG: the replicas that keep the goal, or the latency of a fixed number."""
    runs: dict[RunConfig, list[tuple[float, float]]] = {}
    for each in sorted(found, key=lambda each: each.rate):
        if each.served is not None and each.replicas is not None:
            height = each.served.quantile(goal.share) if fixed else each.replicas
            runs.setdefault(each.summary.config, []).append((each.rate, height))

    def draw(axes: Axes) -> None:
        drawn: dict[str, int] = {}
        for config, curve in runs.items():
            turn = drawn[config.rule] = drawn.get(config.rule, -1) + 1  # a rule's curves differ by their dashes
            look = style_of(config.rule).keywords() | {"linestyle": DASHES[turn % len(DASHES)]}
            axes.plot(*zip(*curve, strict=True), label=literal(config.label), **look)
        up = f"seconds within which {100 * goal.share:g} % are answered" if fixed else "replicas"
        axes.set(xlabel="requests a second", ylabel=up, xscale="log", yscale="log")

    return picture_of(draw)


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan, print a table for each rate, and draw what is asked for."""
    made = parser(
        __doc__,
        results=([Path], "result files of cactus eval"),
        costs=(None, "a JSON file of measured times", {"type": Path}),
        paper=(None, f"a GPU on paper: {', '.join(Paper.model_fields)}"),
        rates=([], "requests a second", {"type": float, "nargs": "+", "required": True}),
        latency=(None, "seconds within which answers are to be complete", {"type": float, "required": True}),
        share=(0.95, "of the answers, in (0, 1)"),
        max_batch=(64, "requests that share a replica's step at most"),
        replicas=(None, "work out the latencies of so many replicas instead", {"type": int}),
        picture=(None, "draw replicas, or latencies, by rate as SVG", {"type": Path}),
    )
    given = made.parse_args(arguments)
    if (given.costs is None) == (given.paper is None):
        made.error("give --costs or --paper")
    if not given.latency > 0 or not 0 < given.share < 1:
        made.error(f"latency must be above 0, and share in (0, 1), but are {given.latency:g} and {given.share:g}")
    rates, goal = sorted(set(given.rates)), Goal(given.latency, given.share)
    summaries = [each for _, file in read_all(given.results) for each in summarise(file)]
    lengths = (each.config.num_speculative_tokens for each in summaries)
    try:
        if given.costs is not None:
            costs = read_costs(given.costs)
        else:
            fixed = {length for length in lengths if isinstance(length, int)}
            costs = read_paper(given.paper).costs(fixed, max_batch=given.max_batch)
        found = plan(summaries, costs, given.max_batch, rates, goal, given.replicas)
    except (ValueError, TypeError) as mistake:
        made.error(str(mistake))
    for rate in rates:
        print(table([one for one in found if one.rate == rate], rate, goal), end="\n\n")
    if others := len(summaries) - len(found) // len(rates):
        print(f"{others} runs are left out: the costs do not tell what their steps take.")
    if given.picture is not None:
        write_atomically(given.picture, picture(found, goal, fixed=given.replicas is not None))


if __name__ == "__main__":
    main()
