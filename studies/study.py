"""A study: what it is asked on the command line, what it measures, and what its pages show of that."""

from __future__ import annotations

import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import Request, SamplingParams
from cactus_decoding.cli import options as command_line
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.models.base import BaseCachedModel, tree_inputs
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.runner import answer_runs, pending
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.pages import ROOT, put
from scripts.results import asked, parser, read, write
from studies.stored import opened

SAMPLINGS = {"plain": SamplingParams(), "truncated": SamplingParams(temperature=0.6, top_k=20, top_p=0.95)}
"""Of the target's own probabilities, and of the Cactus paper."""
SAMPLING_OPTION = ([*SAMPLINGS], {"choices": [*SAMPLINGS]})


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
    command_line.prepare_process(getattr(given, "threads", 1), small=True)
    if not given.only_render:
        for name in (each for each in needed if getattr(given, each) in (None, [])):
            made.error(f"give {name.replace('_', '-')}, or --only-render")
        name = f"{results.parent.parent.name}.{results.name.partition('.')[0]}"
        write(given.results, measure(given), {"study": name} | asked(given))
    if not given.only_measure:
        put(given.page, shown(read(given.results)))
    return given


def study_of_parts(
    about: str | None,
    folder: Path,
    sizes: Any,
    measure: Callable[[Namespace, Any, dict[str, Any]], None],
    shown: Callable[[Path, Sequence[str]], Mapping[str, str]],
    page: str = "",
    /,
    **options: Any,
) -> None:
    """Measure what several result files lack, unless there is only to render, and put what they show on the page.

    Args:
        about: the module's docstring.
        folder: the usual folder of the result files.
        sizes: a dataclass of how much each part has, which ``--problems`` limits.
        measure: takes the options, the sizes, and what provenance says; writes the result files that are not there.
        shown: returns tables and pictures of a folder and of some samplings, as `put` takes them.
        page: the usual page, from ``docs/studies/``, if that is not the study's own.
        options: of the command line, as `scripts.results.parser` takes them.
    """
    name = folder.parent.name
    given = parser(
        about, **options, problems=(None, "at most so many of each part, for a trial", {"type": int}),
        only_measure=False, only_render=False, folder=(folder, "where result files are"),
        page=ROOT / "docs" / "studies" / (page or f"{name}.md"),
    ).parse_args()  # fmt: skip
    command_line.prepare_process(1, small=True)
    given.folder, given.page = given.folder.resolve(), given.page.resolve()  # a study may change folders
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.only_render:
        most = given.problems or math.inf
        limited = replace(sizes, **{part: min(most, each) for part, each in vars(sizes).items()})
        measure(given, limited, {"study": name} | asked(given))
    if not given.only_measure:
        put(given.page, shown(given.folder, getattr(given, "sampling", [*SAMPLINGS])))


def run_of(
    draft: str, rule: str, length: int, policy: Mapping[str, Any] | None = None, *, sampling: str = "plain",
    task: str = "word_problems", problems: int,
) -> RunConfig:  # fmt: skip
    """Return the run of a rule under a relaxation policy, of the bundled target."""
    how: dict[str, Any] = {"sampling": SAMPLINGS[sampling], "policy": relaxation_policy(**policy or {})}
    request = Request(rule, num_speculative_tokens=length, **how)
    return RunConfig(task, "bundled", draft, problems=problems, request=request)


def answer(
    path: Path, configs: Sequence[RunConfig], about: Mapping[str, Any], *, audited: bool = True
) -> dict[RunConfig, RunSummary]:
    """Answer what a result file lacks of some runs of the bundled target; return the summaries of all it has."""
    configs = list(dict.fromkeys(configs))
    most = {each.task: max(one.problems for one in configs if one.task == each.task) for each in configs}
    tasks = {name: parse_task(name, problems) for name, problems in most.items()}
    load = partial(load_engine, "transformers", "bundled", audited=audited)
    with opened(path) as file:
        todo = pending(configs, file.results)
        with counting(path.stem, sum(config.problems for config in todo)) as progress:
            done = count(1)
            answer_runs(configs, tasks, load, file, provenance(about), lambda remark: progress(next(done), remark))
        return {summary.config: summary for summary in summarise(file.results)}


def least(enough: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Return the least number between two positive ones that is enough, by bisection of their logarithms."""
    low, high = math.log(low), math.log(high)
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)


@torch.inference_mode()
def pass_medians(
    models: Mapping[str, BaseCachedModel], widths: Sequence[int], rounds: int, *, trees: bool = False
) -> dict[str, dict[str, float]]:
    """Return median seconds of passes after 100 tokens, by model and by the number of tokens.

    In a round each is timed once, so that what slows one slows all. The first round warms up, and does not count. With
    ``trees`` a token sees the text and itself alone.
    """
    taken: dict[tuple[str, int], list[float]] = {each: [] for each in product(models, widths)}
    for model in models.values():
        model.reset()
        model.append(list(range(5, 105)), rows=1)
    for name, width in [*taken] * (rounds + 1):
        given = tree_inputs(100, [-1] * width) if trees else {}
        began = time.perf_counter()
        models[name].append([7] * width, rows=width, **given)
        taken[name, width].append(time.perf_counter() - began)
        models[name].rollback(100)
    return {name: {str(width): statistics.median(taken[name, width][1:]) for width in widths} for name in models}
