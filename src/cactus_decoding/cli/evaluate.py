"""`cactus eval`: tasks × rules × draft lengths × seeds, to a result file that survives a kill."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cactus_decoding.cli import INTERRUPTED, notes, options
from cactus_decoding.cli.display import SECONDS, about, counting
from cactus_decoding.cli.evaluation_table import check_may_run, parse_tasks, rescored_file, show_results, unique
from cactus_decoding.cli.options import OUTPUT, RUNNING, option
from cactus_decoding.core.request import NUM_SPECULATIVE_TOKENS

if TYPE_CHECKING:
    from cactus_decoding.core.drafting.trees.shape import TreeShape
    from cactus_decoding.lab.evaluation.chat import Chat
    from cactus_decoding.lab.evaluation.engines.engine import Engine
    from cactus_decoding.lab.evaluation.engines.server import ServerEngine
    from cactus_decoding.lab.evaluation.run_config import RunConfig

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus eval --rule lossless --rule cactus:delta=1.0 --num-speculative-tokens 0,4,10 --output results.jsonl\n\n"
    "cactus eval --task gsm8k:path=gsm8k_test.jsonl --target ./large --draft ./small --rule clamped:width=1 "
    "--seeds 0,1,2 --output results.jsonl\n\n"
    "cactus eval --engine vllm --rule lossless --rule cactus:delta=1.0 --output results.jsonl\n\n"
    "cactus eval --server http://localhost:8000 --concurrency 32 --rule lossless --rule cactus:delta=1.0 "
    "--task gsm8k:path=gsm8k_test.jsonl --output results.jsonl\n\n"
    "cactus eval --lm-eval gsm8k,ifeval --target ./large --draft ./small --rule cactus:delta=1.0 --output results.jsonl"
)
WHAT, MODELS = "What is asked", "Models"


@options.request_options(
    "budget", "policy", "tree", "verification", "sampling", "max_new_tokens", several=("protect", "tree"),
    verification=None,
)  # fmt: skip
def evaluate(
    *,
    out: Annotated[Path, option(
        "Result file, JSON Lines. Runs that it holds already are not done again.", "FILE", OUTPUT,
        flag="--output")],
    task: Annotated[list[str] | None, option(
        "word_problems (what the bundled pair knows), gsm8k, humaneval, ifeval or spec_bench (with their file, as in "
        "gsm8k:path=FILE), or your own, jsonl:path=FILE,extract=NAME. May be given several times.", "TASK", WHAT,
        shown="word_problems")] = None,
    lm_eval: Annotated[str | None, option(
        "Generation tasks of lm-evaluation-harness, comma-separated (needs the extra 'eval').", "NAMES", WHAT,
        flag="--lm-eval", shown="none")] = None,
    lm_eval_path: Annotated[Path | None, option(
        "Folder with further task definitions for lm-evaluation-harness.", "DIR", WHAT, flag="--lm-eval-path",
        shown="none", exists=True, file_okay=False)] = None,
    problems: Annotated[int | None, option(
        "Ask the first N problems of each task.", "N", WHAT, shown="all; 500 word problems", min=1)] = None,
    allow_code_execution: Annotated[bool, option(
        "Run the programs that models write: humaneval needs it. Limits and what is not isolated: docs/evaluation.md.",
        panel=WHAT, flag="--allow-code-execution")] = False,
    target: Annotated[str, option(
        "Verifying model: a local path, a GGUF file or a hub name.", "MODEL", MODELS)] = "bundled",
    draft: Annotated[list[str] | None, option(
        "Proposing model; 'suffix' to look proposals up in the text; 'early_exit:layers=3' for the target's first "
        "layers; may be given several times.", "MODEL", MODELS, shown="bundled:worded")] = None,
    chat: options.ChatFlag = None,
    system: options.System = None,
    engine: Annotated[str | None, option(
        "What decodes: transformers, llama-cpp or vllm.", "NAME", MODELS, shown="llama-cpp for a GGUF file, else "
        "transformers")] = None,
    engine_args: Annotated[str | None, option(
        "Further arguments of vLLM's engine, such as '{\"tensor_parallel_size\": 4}'.", "JSON", MODELS,
        flag="--engine-args", shown="none")] = None,
    server: Annotated[str | None, option(
        "Ask an OpenAI-compatible server instead. --target then names one of its models; a key is taken from "
        "OPENAI_API_KEY.", "URL", MODELS, shown=False)] = None,
    concurrency: Annotated[int, option(
        "Questions that a server has at a time.", "N", RUNNING, min=1)] = 8,
    timeout: Annotated[float, option(
        "Time that a server's answer may take.", "SECONDS", MODELS, min=0.001)] = 600.0,
    retries: Annotated[int, option(
        "How often a question is asked again where the server failed, after pauses of up to half a minute.", "N",
        MODELS, min=0)] = 12,
    rule: Annotated[list[str] | None, option(
        "Acceptance rule, such as cactus:delta=0.5, or your own by its importable path: my_module:MyRule,ratio=0.5; "
        "may be given several times.", "RULE", shown="lossless")] = None,
    settings: options.Settings,
    num_speculative_tokens: Annotated[str | None, option(
        "Proposals per step, comma-separated; 0 is the target alone; spellings of draft lengths are allowed, as in "
        "4,auto. Where trees are verified jointly, chains are in blocks, which is the same.", "N,…", RUNNING,
        shown="6, or none with --tree")] = None,
    seeds: Annotated[
        str,
        typer.Option("--seeds", "--seed", metavar="S,…", rich_help_panel=options.RUNNING,
                     help="Of the answers, comma-separated; all rules share them."),
    ] = "0",
    audit: Annotated[bool, option(
        "Work out what each answer cost: nats, total variation, largest likelihood ratio. Its time does not count. "
        "vLLM's answers are never audited.", panel=OUTPUT, flag="--audit/--no-audit")] = True,
    token_ids: Annotated[bool, option(
        "Keep each answer's tokens beside its text.", panel=OUTPUT, flag="--token-ids")] = False,
    rescore: Annotated[Path | None, option(
        "Score the texts of this result file anew, by the same tasks or by those of --task and --lm-eval, and write "
        "the results to --output; no model runs.", "FILE", OUTPUT, shown="none")] = None,
    every_metric: Annotated[bool, option(
        "Print every metric with its interval, not a row for each setting; 'cactus report' shows them too.",
        panel=OUTPUT, flag="--all")] = False,
    interleaved: Annotated[bool, option(
        "Answer each problem under every setting before the next, so that whatever slows the machine slows them all; "
        "or finish one run after another.", panel=RUNNING, flag="--interleave/--one-by-one")] = True,
    workers: Annotated[int | None, option(
        "Answer problems in N processes at once. They have one thread each unless --threads says more. The answers are "
        "the same; each takes longer than alone: compare times within a file only.", "N", RUNNING,
        shown="none: in this process", min=1)] = None,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Measure what rules cost and what they buy, run by run; the same command resumes where a kill left off."""
    from cactus_decoding.core.drafting.registry import check_names

    if engine != "vllm" and rescore is None and server is None:
        check_names(target, *(draft or ()))
    from cactus_decoding import parse_rule

    if server is not None:
        _check_alone(engine=engine, engine_args=engine_args, workers=workers, token_ids=token_ids or None)
        num_speculative_tokens = num_speculative_tokens or (None if settings["tree"] else "auto")
    chosen_seeds, lengths = _integers("--seeds", seeds), _lengths(num_speculative_tokens, settings["tree"] or [])
    rules = unique(str(parse_rule(text)) for text in rule or ["lossless"])  # first, as a mistyped name needs no torch
    from cactus_decoding import Request
    from cactus_decoding.core.declared import settings_of
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import check_writable
    from cactus_decoding.core.policy.protection import Protection
    from cactus_decoding.lab.evaluation.engines.loading import check_reads, load_engine
    from cactus_decoding.lab.evaluation.intervals import check_installed
    from cactus_decoding.lab.evaluation.run_config import grid, proposing, protecting, ways_to_verify
    from cactus_decoding.lab.evaluation.runs.results import journal_of, opened
    from cactus_decoding.lab.evaluation.runs.runner import pending, run
    from cactus_decoding.lab.evaluation.tasks.sources import file_of
    from cactus_decoding.lab.frontier.relaxations import NONE, parse_policies
    from cactus_decoding.zoo import full_name

    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in dict(locals()).items()
                 if isinstance(value, (str, int, float, list, Path, type(None))) and name != "lengths"}  # fmt: skip
    arguments |= settings
    if rescore is not None:
        if rule or draft or settings.get("protect"):
            raise ValueError("--rescore runs no model: leave out --rule, --draft and --protect")
        check_installed()
        return rescored_file(rescore, out, task, lm_eval, lm_eval_path, every_metric, allow_code_execution)
    engine = "transformers" if engine is None else engine
    if server is None:
        check_reads(engine, target)
    elif len(lengths) > 1:
        raise ValueError("a server has one draft length: --num-speculative-tokens may say which, and no other")
    del settings["tree"]  # which stands among lengths
    relaxed = next((text for text in rules if text != "lossless"), "lossless")
    options.check_budget(settings, relaxed)
    asked = unique(settings.pop("protect") or [NONE])
    parse_policies(asked, **{name: settings[name] for name in settings_of(Protection) if name in settings})
    protected = [None if pattern == NONE else pattern for pattern in asked]
    run_by = engine if server is None else "server"
    ways = ways_to_verify(rules, run_by, settings, lengths)
    for length in lengths:  # raises before tasks are read
        how = proposing(length, ways[relaxed][0]) | protecting(settings, None)
        Request.from_dict(settings | how | {"rule": relaxed})
    served = None if server is None else _served(server, target, timeout, retries)
    load: Callable[[str], Engine]
    if served is not None:
        asked_by = served.ask_by(chat, system)
        _say_found(served, asked_by)
        engine, target, drafts = "server", served.model, draft or [served.draft]
        load = lambda _: served  # noqa: E731
    else:
        load = partial(load_engine, engine, target, audited=audit, engine_arguments=engine_args)
        drafts = unique(map(full_name, draft or _bundled_draft(target)))
        asked_by = options.chat_of(chat, system, target)
    tasks = parse_tasks(task, lm_eval, lm_eval_path, problems, chat=asked_by is not None)
    check_may_run(tasks.values(), allow_code_execution)
    counts = {name: len(each.problems) for name, each in tasks.items()}
    configs = list(
        grid(
            target,
            engine,
            settings,
            tasks=counts,
            drafts=drafts,
            rules=rules,
            lengths=lengths,
            seeds=chosen_seeds,
            protect=protected,
            chat=asked_by,
            concurrency=concurrency if served is not None else None,
        )
    )
    if "coupled" in ways_to_verify(["lossless"], run_by, settings, lengths)["lossless"]:
        apart = [name for name, each in ways.items() if each == ["token"] and name != "lossless"]
        could = ways_to_verify(apart, run_by, settings, [NUM_SPECULATIVE_TOKENS])
        _say_apart([name for name in apart if could[name] == ["token"]], "the rule looks at the drafted token")
        _say_apart(
            [name for name in apart if could[name] == ["coupled"]],
            "the number of proposals varies from step to step",
        )
    check_writable(out, journal_of(out), inputs=map(file_of, task or []))
    check_installed()
    if served is None:
        options.prepare(1 if threads is None and workers is not None else threads, small=target == "bundled")
    console = Console(stderr=True, highlight=False)
    with opened(out) as file:
        todo = pending(configs, file.results)
        if len(todo) < len(configs):
            console.print(f"{len(configs) - len(todo)} of {len(configs)} runs are in {out} already", soft_wrap=True)
        done = count(1)
        at_once = None if served is None else concurrency
        made_by = provenance(arguments) | ({} if served is None else {"server": served.about()})
        try:
            with counting("Answering", sum(config.problems for config in todo)) as progress:
                run(configs, tasks, load, file, made_by,
                    lambda remark: progress(next(done), remark), interleaved=interleaved,
                    token_ids=token_ids, workers=workers, threads=threads or 1,
                    concurrency=at_once, estimate=partial(_say_longest, todo))  # fmt: skip
        except KeyboardInterrupt:
            left = len(pending(configs, file.results))
            problems_of = sum(config.problems for config in configs)
            earlier = problems_of - sum(config.problems for config in todo)
            typer.echo(
                f"cactus: interrupted with {earlier + next(done) - 1} of {problems_of} answers kept, "
                f"{len(configs) - left} of {len(configs)} runs finished in {out}: the same command goes on from there",
                err=True,
            )
            raise typer.Exit(INTERRUPTED) from None
        show_results(file.results, configs, every_metric)


def _check_alone(**others: object) -> None:
    """Raise `ValueError` for options that go with models of this process only."""
    if given := [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]:
        raise ValueError(f"--server asks models that run elsewhere: leave out {', '.join(given)}")


def _served(address: str, target: str, timeout: float, retries: int) -> ServerEngine:
    from cactus_decoding.core.extras import needing

    with needing("--server asks by httpx2", "client"):
        from cactus_decoding.engines.openai.client import ServerClient
        from cactus_decoding.lab.evaluation.engines.server import ServerEngine
    client = ServerClient(address, timeout=timeout, retries=retries)
    return ServerEngine(client, None if target == "bundled" else target)


def _say_found(served: ServerEngine, chat: Chat | None) -> None:
    """Say what the server was found to do."""
    found = served.about()
    where = {None: "takes no rules", "fields": "takes a rule in each request"}.get(
        found["rules"], "takes a rule in each request's vllm_xargs"
    )
    reports = "reports what it did" if found["reports"] else "reports no acceptance by rule"
    how = "plain text" if chat is None else str(chat)
    notes.say(f"{found['address']} serves {served.model}, {where}, {reports}, and is asked by {how}")


def _say_apart(rules: list[str], cause: str) -> None:
    """Say which rules cannot be coupled, and why."""
    if rules:
        notes.say(
            f"not coupled, because {cause}: {', '.join(rules)}; compared with lossless by token verification, on the "
            "same seeds"
        )


def _say_longest(todo: list[RunConfig], seconds: float) -> None:
    """Say how long answers take at most, if that is long."""
    if seconds >= SECONDS:
        answers = sum(config.problems for config in todo)
        notes.say(f"{answers} answers take {about(seconds)} if all get as long as they may (--max-new-tokens)")


def _integers(option: str, text: str) -> list[int]:
    """Return comma-separated integers of at least 0, each once."""
    parts = [part.strip() for part in text.split(",")]
    if (wrong := next((part for part in parts if not part.isdecimal()), None)) is not None:
        raise ValueError(
            f"{option} must be comma-separated integers of at least 0, such as 0,4,10, but {wrong!r} of {text!r} is not"
        )
    return unique(int(part) for part in parts)


def _lengths(text: str | None, trees: list[str]) -> list[int | str | TreeShape]:
    """Return comma-separated draft lengths, and trees; a comma before ``knob=`` belongs to a length's own spelling."""
    from cactus_decoding.core.drafting.registry import as_draft_length, as_tree

    parts: list[str] = []
    if text is not None or not trees:
        given = str(NUM_SPECULATIVE_TOKENS) if text is None else text
        parts = [part.strip() for part in re.split(r",(?!\s*\w+=)", given)]
    for part in parts:
        as_draft_length(part)  # raises before any work
    return unique([*(int(part) if part.isdecimal() else part for part in parts), *map(as_tree, trees)])


def _bundled_draft(target: str) -> list[str]:
    if target != "bundled":
        raise ValueError(
            f"a draft is missing for target {target!r}: give --draft a model's path or name, 'suffix' or "
            "'early_exit:layers=3'"
        )
    return ["bundled"]
