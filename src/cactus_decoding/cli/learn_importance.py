"""`cactus learn-importance`: where keeping a rejected token spoils the answer, learned from a pair's own answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cactus_decoding.cli import INTERRUPTED, options
from cactus_decoding.cli.display import counting
from cactus_decoding.cli.options import OUTPUT, RUNNING, option
from cactus_decoding.core.request import NUM_SPECULATIVE_TOKENS

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus learn-importance --output importance.safetensors\n\n"
    "cactus learn-importance --target ./large --draft ./small --task jsonl:path=train.jsonl,extract=last_number "
    "--problems 1000 --temperature 0.6 --top-p 0.95 --output importance.safetensors\n\n"
    "cactus generate '…' --rule clamped:width=3 --importance importance.safetensors"
)
WHAT, MODELS = "What is asked", "Models"


@options.request_options(
    "num_speculative_tokens", "sampling", "max_new_tokens", num_speculative_tokens=str(NUM_SPECULATIVE_TOKENS)
)
def learn_importance(
    *,
    out: Annotated[Path, option(
        "The importance, as safetensors; 'cactus show FILE' says what it found.", "FILE", OUTPUT,
        flag="--output")],
    target: Annotated[str, option("Verifying model: a local path or a hub name.", "MODEL", MODELS)] = "bundled",
    draft: Annotated[str | None, option(
        "Proposing model, 'suffix' to look proposals up in the text, or 'early_exit:layers=3'.", "MODEL", MODELS,
        shown="bundled:worded")] = None,
    task: Annotated[str, option(
        "What to learn from: word_problems:split=train (or validation), gsm8k:path=FILE, or "
        "jsonl:path=FILE,extract=NAME. Never what you report on.", "TASK", WHAT)] = "word_problems:split=train",
    problems: Annotated[int, option("Learn from the first N problems.", "N", WHAT, min=1)] = 1000,
    chat: options.ChatFlag = None,
    system: options.System = None,
    continuations: Annotated[int, option(
        "How often an answer is continued from a position, with the drafted token and without.", "N", WHAT, min=1)] = 2,
    max_positions: Annotated[int, option("Positions of one answer, at most.", "N", WHAT, min=1)] = 8,
    settings: options.Settings,
    seed: Annotated[int, option("Of answers and continuations.", "S", RUNNING, min=0)] = 0,
    batch: Annotated[int, option("Continuations at once.", "N", RUNNING, min=1)] = 64,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Learn where relaxing spoils answers, for --importance of other commands.

    Answers problems losslessly; where a proposal is rejected, puts it in, continues by the target alone with the same
    random numbers with and without it, and fits how likely the answer is then wrong to both models' rows. The same
    command resumes where a kill left off. Needs the extra 'importance'.
    """
    from cactus_decoding.core.drafting.registry import check_model_names

    check_model_names(target, draft)  # first, as a mistyped name needs no torch
    from cactus_decoding import Request
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import check_writable
    from cactus_decoding.core.generate import check_prompt
    from cactus_decoding.core.pair import load_pair
    from cactus_decoding.lab.evaluation.chat import as_settings
    from cactus_decoding.lab.evaluation.runs.results import Journal, journal_of
    from cactus_decoding.lab.evaluation.tasks.sources import file_of, parse_task
    from cactus_decoding.lab.evaluation.tasks.task import task_in_chat
    from cactus_decoding.lab.training.importance import collecting, fitting
    from cactus_decoding.zoo import full_name

    asked = collecting.Collection(Request.from_dict(settings | {"seed": seed}), continuations, max_positions)
    options.check_suffix("--output", out, ".safetensors")
    journal_file = journal_of(out)
    check_writable(out, journal_file, inputs=[file_of(task)])
    fitting.check_number_of_problems(problems)
    asked_by = options.asked_chat(chat, system, target)
    chosen = parse_task(task, problems, chat=asked_by is not None)
    collecting.check_task(task, chosen)
    fitting.check_installed()
    options.prepare_process(threads, target, draft, small=target == "bundled")
    console = Console(stderr=True, highlight=False)
    with console.status("Loading the models"):
        pair = load_pair(target, draft, kept_prompts=0)
    chosen = task_in_chat(chosen, pair.tokenizer, asked_by)
    for problem in chosen.problems:
        check_prompt(pair, problem.prompt, asked.request)
    names = {"target": target, "draft": full_name(draft or "bundled"), "task": task} | as_settings(asked_by)
    about = provenance(names | asked.as_dict() | {"problems": problems})
    journal = Journal(journal_file)
    finished: list[str] = []
    try:
        with counting("Answering", problems) as report:
            key = f"{about['commit']} {target} {draft}"
            entries = collecting.collect(pair, chosen, asked, journal, key, report, batch=batch)
        with console.status("Fitting"):
            importance, found = fitting.learn(pair, entries, names | asked.as_dict(), about)
        importance.save(out)
        finished = [collecting.key_of(key, asked, problem) for problem in chosen.problems]
    except KeyboardInterrupt:
        typer.echo(f"cactus: interrupted; what is done is in {journal_file}: the same command goes on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        journal.finish(finished)
    typer.echo(fitting.summary(found))
    typer.echo(f"wrote {out}: 'cactus show {out}' names the tokens that matter most")
