"""An evaluation: a plan, made of options and checked before anything runs, and what runs it.

`cactus eval` and `cactus demo` declare options, run a plan and print what it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cactus_decoding.core.declared import settings_of
from cactus_decoding.core.drafting.registry import check_model_names
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.extras import needing
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import check_writable
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.request import AUTO, NUM_SPECULATIVE_TOKENS
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.lab.evaluation.chat import Chat, choose_chat
from cactus_decoding.lab.evaluation.engines.engine import Engine
from cactus_decoding.lab.evaluation.engines.loading import check_reads, load_engine
from cactus_decoding.lab.evaluation.intervals import check_scipy
from cactus_decoding.lab.evaluation.run_config import (
    NO_PROTECTION,
    RunConfig,
    grid,
    parse_policies,
    requests_of,
    ways_to_verify,
)
from cactus_decoding.lab.evaluation.runs.alike import check_comparable
from cactus_decoding.lab.evaluation.runs.results import RunResult, journal_of, opened, read_results
from cactus_decoding.lab.evaluation.runs.runner import answer_runs, pending, rescored
from cactus_decoding.lab.evaluation.tasks.sources import check_may_run, file_of, parse_task, parse_tasks
from cactus_decoding.lab.evaluation.tasks.task import Task
from cactus_decoding.zoo import BUNDLED, full_name

if TYPE_CHECKING:
    from cactus_decoding.lab.evaluation.engines.server import ServerEngine

logger = logging.getLogger(__name__)
"""Says what a user may not expect: how a target is asked, what a server takes, which rules are not coupled."""

Progress = Callable[[Sequence[RunConfig]], AbstractContextManager[Callable[[int, str], None]]]
"""A context for the runs that are to be answered; its function gets how many answers there are, and a run's label."""


@dataclass(frozen=True)
class Plan:
    """Runs, and what it takes to answer them.

    Attributes:
        configs: the runs.
        tasks: the tasks that they are of, by name.
        load: returns the engine that answers with a draft. It must pickle for ``workers``.
        out: the result file, which may hold some of the runs already; None keeps nothing.
        arguments: what asked for the runs; a part of the provenance of each.
        server: what a server was found to do, also for the provenance; None for models of this process.
        engine_args: vLLM's further arguments, also for the provenance.
        interleaved: whether each problem is answered under every run before the next.
        token_ids: whether each answer's tokens are kept beside its text.
        workers: how many processes answer at once; None answers in this one.
        threads: of each of these processes.
        concurrency: how many questions a server has at a time.
    """

    configs: Sequence[RunConfig]
    tasks: Mapping[str, Task]
    load: Callable[[str], Engine]
    out: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] | None = None
    engine_args: str | None = None
    interleaved: bool = True
    token_ids: bool = False
    workers: int | None = None
    threads: int = 1
    concurrency: int | None = None


class InterruptedPlanError(KeyboardInterrupt):
    """Ctrl-C, with what a result file holds by then: running the plan again goes on from there."""


def plan_evaluation(
    settings: Mapping[str, Any] | None = None,
    *,
    out: Path | None = None,
    tasks: Sequence[str] = (),
    lm_eval: str | None = None,
    lm_eval_path: Path | None = None,
    problems: int | None = None,
    allow_code_execution: bool = False,
    target: str = BUNDLED,
    drafts: Sequence[str] = (),
    chat: bool | None = None,
    system: str | None = None,
    engine: str | None = None,
    engine_args: str | None = None,
    server: str | None = None,
    concurrency: int = 8,
    timeout: float = 600.0,
    retries: int = 12,
    rules: Sequence[str] = ("lossless",),
    lengths: Sequence[int | str | TreeShape] = (),
    protect: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    audit: bool = True,
    token_ids: bool = False,
    interleaved: bool = True,
    workers: int | None = None,
    threads: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of every combination of tasks, drafts, rules, draft lengths, protections and seeds.

    Options are those of `cactus eval`. ``settings`` are what all requests share, by the flat names of
    `Request.from_dict`; ``lengths`` are draft lengths and trees, and ``arguments`` what result files say was asked for,
    beside the rules and seeds.

    Raises:
        ValueError: for options that are invalid or do not go together, before any model is loaded.
        ServerError: for a ``server`` that cannot be reached.

    Example:
        >>> plan = plan_evaluation({"max_new_tokens": 8}, rules=["lossless", "clamped:width=1"], problems=2)
        >>> [config.label for config in plan.configs]
        ['lossless coupled ×6', 'clamped:width=1.0 coupled ×6']
    """
    if server is not None:
        _check_alone(engine=engine, engine_args=engine_args, workers=workers, token_ids=token_ids or None)
    elif engine != "vllm":
        check_model_names(target, *drafts)
    rules, seeds = _unique(str(parse_rule(text)) for text in rules or ["lossless"]), _unique(seeds)
    settings = dict(settings or {})
    lengths = _unique(lengths or [NUM_SPECULATIVE_TOKENS if server is None else AUTO])
    run_by = "server" if server is not None else "transformers" if engine is None else engine
    if server is None:
        check_reads(run_by, target)
    elif len(lengths) > 1:
        raise ValueError("a server has one draft length: --num-speculative-tokens may say which, and no other")
    elif len(drafts := _unique(drafts)) > 1:
        raise ValueError(
            f"a server has one draft, and --draft may name it, but {len(drafts)} are given: {', '.join(drafts)}"
        )
    protected = _protected(settings, protect)
    requests = requests_of(run_by, settings, rules=rules, lengths=lengths, seeds=seeds, protect=protected)
    load: Callable[[str], Engine]
    served = None if server is None else _served(server, target, timeout, retries)
    if served is not None:
        asked_by = served.ask_by(chat, system)
        _log_found(served, asked_by)
        target, drafts, load = served.model, drafts or [served.draft], lambda _: served
    else:
        load = partial(load_engine, run_by, target, audited=audit, engine_arguments=engine_args)
        drafts = _unique(map(full_name, drafts or _bundled_draft(target)))
        asked_by = choose_chat(chat, system, target)
    known = parse_tasks(tasks, lm_eval, lm_eval_path, problems, chat=asked_by is not None)
    check_may_run(known.values(), allow_code_execution)
    at_once = None if served is None else concurrency
    sizes = {name: len(each.problems) for name, each in known.items()}
    plan = Plan(
        grid(target, run_by, requests, tasks=sizes, drafts=drafts, chat=asked_by, concurrency=at_once),
        known,
        load,
        out,
        {**(arguments or {}), "rules": rules, "chosen_seeds": seeds},
        None if served is None else served.found(),
        engine_args,
        interleaved,
        token_ids,
        workers,
        threads or 1,
        at_once,
    )
    _log_not_coupled(rules, run_by, settings, lengths)
    if out is not None:
        check_writable(out, journal_of(out), inputs=map(file_of, tasks))
    check_scipy()
    return plan


def run_plan(
    plan: Plan, progress: Progress | None = None, estimate: Callable[[int, float], None] | None = None
) -> list[RunResult]:
    """Answer the runs that the plan's file lacks, and return all results of the file.

    ``estimate`` is called with the number of answers and the most seconds that they should take, where that can be told
    soon. Raises `InterruptedPlanError` for Ctrl-C where there is a file.
    """
    with opened(plan.out) as file:
        todo, done = pending(plan.configs, file.results), count(1)
        longest = None if estimate is None else partial(estimate, num_answers(todo))
        where = {"running": {"engine_args": plan.engine_args}} if plan.server is None else {"server": dict(plan.server)}
        made_by = provenance(plan.arguments) | where
        try:
            with nullcontext(_unseen) if progress is None else progress(todo) as report:
                answer_runs(
                    plan.configs, plan.tasks, plan.load, file, made_by, lambda remark: report(next(done), remark),
                    interleaved=plan.interleaved, token_ids=plan.token_ids, workers=plan.workers, threads=plan.threads,
                    concurrency=plan.concurrency, estimate=longest,
                )  # fmt: skip
        except KeyboardInterrupt:
            if plan.out is None:
                raise
            all_answers, all_runs = num_answers(plan.configs), len(plan.configs)
            raise InterruptedPlanError(
                f"interrupted with {all_answers - num_answers(todo) + next(done) - 1} of {all_answers} answers kept, "
                f"{all_runs - len(pending(plan.configs, file.results))} of {all_runs} runs finished in {plan.out}: "
                "the same command goes on from there"
            ) from None
        return file.results


def _unseen(done: int, remark: str) -> None:
    pass


def num_answers(configs: Iterable[RunConfig]) -> int:
    return sum(config.problems for config in configs)


def rescore_file(
    source: Path,
    out: Path,
    *,
    tasks: Sequence[str] = (),
    lm_eval: str | None = None,
    lm_eval_path: Path | None = None,
    allow_code_execution: bool = False,
) -> list[RunResult]:
    """Score the texts of a result file anew, and return the results, which ``out`` then holds too; no model runs.

    The tasks are those named, or else the bundled word problems. Raises `ValueError` for runs of other tasks, and for
    runs that ``out`` holds already.
    """
    check_scipy()
    check_writable(out, inputs=[source, *map(file_of, tasks)])
    results = read_results(source)
    scored: list[RunResult] = []
    for chat in (False, True):
        asked = [result for result in results if (result.config.chat is not None) == chat]
        known = parse_tasks(tasks, lm_eval, lm_eval_path, chat=chat) if asked and (tasks or lm_eval) else {}
        check_may_run(known.values(), allow_code_execution)
        for config in (result.config for result in asked):  # those that need no file
            if config.task.partition(":")[0] == "word_problems":
                found = known.get(config.task)
                if found is None or len(found.problems) < config.problems:
                    known[config.task] = parse_task(config.task, config.problems, chat=chat)
        scored += rescored(asked, known, str(source))
    with opened(out) as file:
        held = {result.config for result in file.results}
        if any(result.config in held for result in scored):
            raise ValueError(f"{out} holds results of the same runs already: give --output another file")
        check_comparable([*file.results, *scored])
        for result in scored:
            file.append(result)
    return scored


_Value = TypeVar("_Value")


def _unique(values: Iterable[_Value]) -> list[_Value]:
    return list(dict.fromkeys(values))


def _check_alone(**others: object) -> None:
    """Raise `ValueError` for options that go with models of this process only."""
    if given := [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]:
        raise ValueError(f"--server asks models that run elsewhere: leave out {', '.join(given)}")


def _protected(settings: dict[str, Any], protect: Sequence[str]) -> list[str | None]:
    """Return the patterns to protect, None for no protection; the settings' own pattern is taken out of them."""
    own = settings.pop("protect", None)
    asked = _unique(protect or [own or NO_PROTECTION])
    parse_policies(asked, **{name: settings[name] for name in settings_of(Protection) if name in settings})  # raises
    return [None if pattern == NO_PROTECTION else pattern for pattern in asked]


def _bundled_draft(target: str) -> list[str]:
    if target != BUNDLED:
        raise ValueError(
            f"a draft is missing for target {target!r}: give --draft a model's path or name, 'suffix' or "
            "'early_exit:layers=3'"
        )
    return [BUNDLED]


def _served(address: str, target: str, timeout: float, retries: int) -> ServerEngine:
    with needing("--server asks by httpx2", "client"):
        from cactus_decoding.engines.openai.client import ServerClient
        from cactus_decoding.lab.evaluation.engines.server import ServerEngine
    client = ServerClient(address, timeout=timeout, retries=retries)
    return ServerEngine(client, None if target == BUNDLED else target)


def _log_found(served: ServerEngine, chat: Chat | None) -> None:
    """Say what the server was found to do."""
    found = served.found()
    where = {None: "takes no rules", "fields": "takes a rule in each request"}.get(
        found["rules"], "takes a rule in each request's vllm_xargs"
    )
    reports = "reports what it did" if found["reports"] else "reports no acceptance by rule"
    how = "plain text" if chat is None else str(chat)
    logger.info("%s serves %s, %s, %s, and is asked by %s", found["address"], served.model, where, reports, how)
    if not found["counts_tokens"]:
        logger.info("it does not say how many tokens an answer has: lengths and tokens per second stay unknown")


def _log_not_coupled(
    rules: Sequence[str], run_by: str, settings: Mapping[str, Any], lengths: Sequence[int | str | TreeShape]
) -> None:
    """Say which rules are not coupled though lossless could be, and why."""
    if "coupled" not in ways_to_verify(["lossless"], run_by, settings, lengths)["lossless"]:
        return
    ways = ways_to_verify(rules, run_by, settings, lengths)
    apart = [name for name, each in ways.items() if each == ["token"] and name != "lossless"]
    could = ways_to_verify(apart, run_by, settings, [NUM_SPECULATIVE_TOKENS])
    causes = {
        "token": "the rule looks at the drafted token",
        "coupled": "the number of proposals varies from step to step",
    }
    for way, cause in causes.items():
        if rules := [name for name in apart if could[name] == [way]]:
            logger.info(
                "not coupled, because %s: %s; compared with lossless by token verification, on the same seeds",
                cause,
                ", ".join(rules),
            )
