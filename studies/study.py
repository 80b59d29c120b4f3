"""A study: what it is asked on the command line, what it measures, and what its pages show of that."""

from __future__ import annotations

import math
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from cactus_decoding.cli import options as command_line
from cactus_decoding.cli.display import counting
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.runs.runner import pending, run
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.pages import ROOT, put
from scripts.results import asked, parser, read, write
from studies.stored import opened

Sizes = TypeVar("Sizes", bound=Any)


def study(
    about: str | None,
    results: Path,
    page: str,
    measure: Callable[[Namespace], Mapping[str, Any]],
    shown: Callable[[Any], Mapping[str, str]],
    /,
    needed: Sequence[str] = (),
    **options: Any,
) -> Namespace:
    """Measure and write the result file, unless there is only to render, and put what it shows on the page.

    Args:
        about: the module's docstring.
        results: the usual result file.
        page: the usual page, from ``docs/``.
        measure: returns the result.
        shown: returns tables and pictures of a result by their names, as `put` takes them.
        needed: options without which nothing can be measured.
        options: of the command line, as `scripts.results.parser` takes them; what was given is returned.
    """
    places = {"only_measure": False, "only_render": False, "results": results, "page": ROOT / "docs" / page}
    made = parser(about, **options, **places)
    given = made.parse_args()
    command_line.prepare(getattr(given, "threads", 1), small=True)
    if not given.only_render:
        for name in (each for each in needed if getattr(given, each) in (None, [])):
            made.error(f"give {name.replace('_', '-')}, or --only-render")
        name = f"{results.parent.parent.name}.{results.name.partition('.')[0]}"
        write(given.results, measure(given), {"study": name} | asked(given))
    if not given.only_measure:
        put(given.page, shown(read(given.results)))
    return given


def parser_of_answers(about: str | None, samplings: Collection[str], folder: Path, **options: Any) -> ArgumentParser:
    """Return a parser for studies that answer problems under several samplings, and keep several result files."""
    name = folder.parent.name
    return parser(
        about, **options, sampling=([*samplings], {"choices": [*samplings]}), only_answer=False, only_render=False,
        problems=(None, "at most so many of each part, for a trial", {"type": int}),
        folder=(folder, "where result files are"),
        page=(ROOT / "docs" / "studies" / f"{name}.md", "the page whose tables are replaced"),
    )  # fmt: skip


def at_most(limit: int | None, sizes: Sizes) -> Sizes:
    """Return how much each part of a study has, limited for a trial."""
    return sizes if limit is None else replace(sizes, **{name: min(limit, each) for name, each in vars(sizes).items()})


def least(enough: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Return the least number between two positive ones that is enough, by bisection of their logarithms."""
    low, high = math.log(low), math.log(high)
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)


def medians_in_turn(
    functions: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[], object]
) -> dict[str, float]:
    """Return the median seconds of each function: in a round each runs once, so that what slows one slows all.

    What is done ``before`` each is not timed.
    """
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for name in [*functions] * rounds:
        before()
        began = time.perf_counter()
        functions[name]()
        taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in taken.items()}


def answer(
    path: Path, configs: Sequence[RunConfig], about: Mapping[str, Any], *, audited: bool = True
) -> dict[RunConfig, RunResult]:
    """Answer what a result file lacks of some runs of the bundled target; return the results of all it has."""
    configs = list(dict.fromkeys(configs))
    most = {each.task: max(one.problems for one in configs if one.task == each.task) for each in configs}
    tasks = {name: parse_task(name, problems) for name, problems in most.items()}
    load = partial(load_engine, "transformers", "bundled", audited=audited)
    with opened(path) as file:
        todo = pending(configs, file.results)
        with counting(path.stem, sum(config.problems for config in todo)) as progress:
            done = count(1)
            run(configs, tasks, load, file, about, lambda remark: progress(next(done), remark))
        return {result.config: result for result in file.results}
