"""`cactus train-draft`: a draft that its target accepts more of."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import INTERRUPTED, options
from cactus_decoding.cli.display import Stages
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.lab.training.settings import TrainingSettings, check_installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus train-draft --target ./large --draft ./small --data prompts.jsonl --output ./trained\n\n"
    "cactus train-draft --target bundled --draft bundled:worded --data word_problems:split=train --problems 3200 "
    "--steps 400 --batch 32 --learning-rate 2e-3 --output ./trained\n\n"
    "cactus train-draft --target ./large --layers 4 --width 512 --data texts.jsonl --loss total_variation "
    "--output ./trained\n\n"
    "torchrun --nproc-per-node 4 --no-python cactus train-draft --target ./large --first-layers 2 "
    "--data prompts.jsonl --bfloat16 --output ./trained"
)
START, LEARNED, HOW = "Where the draft starts (one of three)", "What it learns from", "How it learns"
PANELS = {
    START: "draft layers width first_layers",
    LEARNED: "draft_vocabulary problems max_new_tokens max_length held_out on_policy refresh_every",
    HOW: "loss steps batch gradient_accumulation learning_rate evaluate_every num_speculative_tokens bfloat16",
    options.RUNNING: "cache seed",
}


@options.options_of(TrainingSettings, PANELS)
def train_draft(
    *,
    target: Annotated[str, typer.Option(metavar="MODEL", help="Verifying model: a local path or a hub name.")],
    data: Annotated[
        str,
        typer.Option(metavar="FILE|TASK", rich_help_panel=LEARNED,
                     help='JSON Lines of {"prompt"} or {"question"} (the target answers it), {"prompt", "completion"} '
                     'or {"text"}; or a task such as word_problems:split=train or jsonl:path=FILE. Never what you '
                     "report on."),
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", rich_help_panel=options.OUTPUT,
                     help="The trained draft: a Hugging Face folder with a model card. It grows in DIR.cactus-part."),
    ],
    chat: options.ChatFlag = None,
    system: options.System = None,
    settings: options.Settings,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Train a draft so that its target accepts more of it; say by how much.

    Uses transformers' trainer: several GPUs by torchrun, bfloat16, gradient accumulation. Keeps the checkpoint with the
    longest expected steps on held-out documents. The same command resumes where a kill left off. Needs the extra
    'train'.
    """
    read = parse_gguf(target) is None  # a GGUF file is refused later, with the reason
    if read:
        from cactus_decoding.core.drafting.registry import check_model_names

        check_model_names(target, settings["draft"])  # first, as a mistyped name needs no torch
    from cactus_decoding.lab.training.data import read_documents

    wanted = TrainingSettings(target, data, batch_size=settings.pop("batch"), **settings)
    read_documents(data, 1)  # raises for invalid data, before anything heavy is imported
    if read:
        asked = options.asked_chat(chat, system, target)
        wanted = replace(wanted, chat=asked is not None, system=system)
    options.prepare_process(threads, *((target, wanted.draft) if read else ()), small=target == "bundled")
    check_installed()
    from cactus_decoding.core.files.writing import part_path
    from cactus_decoding.lab.training.training import train_draft as train

    try:
        with Stages() as report:
            folder = train(wanted, output, report)
    except KeyboardInterrupt:
        typer.echo(f"cactus: interrupted; what is done is in {part_path(output)}: the same command goes on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts, the first
        for line in _outcome(json.loads((folder / "training.json").read_text(encoding="utf-8"))):
            typer.echo(line)
        typer.echo(f"wrote {folder}, with a README.md")


def _outcome(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what rules accept of the draft, before and after, and whether any accepts more."""
    steps = found["provenance"]["arguments"]["num_speculative_tokens"]
    lengths = {rule: (found["before"][rule]["length"], each["length"]) for rule, each in found["after"].items()}
    for rule, (before, after) in lengths.items():
        yield f"{rule}: {_spelled(*before)} to {_spelled(*after)} tokens per step of {steps} proposals"
    if all(after[0] <= before[0] for before, after in lengths.values()):
        yield "nothing was gained on the documents that training did not see: keep the draft that you had"


def _spelled(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f}–{high:.2f})"
