"""`cactus eval`: tasks × rules × draft lengths × seeds, to a result file that survives a kill."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cactus_decoding.cli import INTERRUPTED, notes, options
from cactus_decoding.cli.display import LONG_SECONDS, counting, duration
from cactus_decoding.cli.evaluation_table import show_results
from cactus_decoding.cli.options import OUTPUT, RUNNING, option

if TYPE_CHECKING:
    from cactus_decoding.core.drafting.trees.shape import TreeShape
    from cactus_decoding.lab.evaluation.plan import Plan
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
        "Time that a server may take to begin an answer, or to go on with it.", "SECONDS", MODELS, min=0.001,
        max=86400)] = 600.0,
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
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in dict(locals()).items()
                 if isinstance(value, (str, int, float, list, Path, type(None)))} | settings  # fmt: skip
    chosen_seeds, lengths = _integers("--seeds", seeds), _lengths(num_speculative_tokens, settings.pop("tree") or [])
    from cactus_decoding.lab.evaluation.plan import InterruptedPlanError, plan_evaluation, rescore_file, run_plan

    notes.say_what_is_logged("cactus_decoding.lab.evaluation")
    tasks, protect = task or (), settings.pop("protect")
    if rescore is not None:
        if rule or draft or protect:
            raise ValueError("--rescore runs no model: leave out --rule, --draft and --protect")
        scored = rescore_file(
            rescore, out, tasks=tasks, lm_eval=lm_eval, lm_eval_path=lm_eval_path,
            allow_code_execution=allow_code_execution,
        )  # fmt: skip
        return show_results(scored, [result.config for result in scored], every_metric)
    options.check_text("system", system or "")
    options.check_budget(settings, *(rule or ["lossless"]))
    plan = plan_evaluation(
        settings, out=out, tasks=tasks, lm_eval=lm_eval, lm_eval_path=lm_eval_path, problems=problems,
        allow_code_execution=allow_code_execution, target=target, drafts=draft or (), chat=chat, system=system,
        engine=engine, engine_args=engine_args, server=server, concurrency=concurrency, timeout=timeout,
        retries=retries, rules=rule or (), lengths=lengths, protect=protect or (), seeds=chosen_seeds, audit=audit,
        token_ids=token_ids, interleaved=interleaved, workers=workers, threads=threads, arguments=arguments,
    )  # fmt: skip
    if server is None:
        options.prepare_process(1 if threads is None and workers is not None else threads, small=target == "bundled")
    try:
        results = run_plan(plan, partial(_answering, plan), _say_longest)
    except InterruptedPlanError as error:
        typer.echo(f"cactus: {error}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    show_results(results, plan.configs, every_metric)


@contextmanager
def _answering(plan: Plan, todo: Sequence[RunConfig]) -> Iterator[Callable[..., None]]:
    """Show how many of the plan's runs are in its file already, and how many of the others are answered."""
    from cactus_decoding.lab.evaluation.plan import num_answers

    if (runs := len(plan.configs)) > len(todo):
        console = Console(stderr=True, highlight=False)
        console.print(f"{runs - len(todo)} of {runs} runs are in {plan.out} already", soft_wrap=True)
    with counting("Answering", num_answers(todo)) as progress:
        yield progress


def _say_longest(answers: int, seconds: float) -> None:
    """Say how long answers take at most, if that is long."""
    if seconds >= LONG_SECONDS:
        notes.say(f"{answers} answers take {duration(seconds)} if all get as long as they may (--max-new-tokens)")


def _integers(option: str, text: str) -> list[int]:
    """Return comma-separated integers of at least 0."""
    parts = [part.strip() for part in text.split(",")]
    if (wrong := next((part for part in parts if not part.isdecimal()), None)) is not None:
        raise ValueError(
            f"{option} must be comma-separated integers of at least 0, such as 0,4,10, but {wrong!r} of {text!r} is not"
        )
    return [int(part) for part in parts]


def _lengths(text: str | None, trees: list[str]) -> list[int | str | TreeShape]:
    """Return comma-separated draft lengths, and trees; a comma before ``knob=`` belongs to a length's own spelling."""
    from cactus_decoding.core.drafting.registry import as_draft_length, as_tree

    parts = [] if text is None else [part.strip() for part in re.split(r",(?!\s*\w+=)", text)]
    for part in parts:
        as_draft_length(part)  # raises before any work
    return [*(int(part) if part.isdecimal() else part for part in parts), *map(as_tree, trees)]
