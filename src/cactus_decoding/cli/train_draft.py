"""`cactus train-draft`: a draft that its target accepts more of."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cactus_decoding.cli import options
from cactus_decoding.cli.progress import counting
from cactus_decoding.training.acceptance.losses import LOSS_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus train-draft --target ./large --draft ./small --data prompts.jsonl --output ./trained\n\n"
    "cactus train-draft --target bundled --draft bundled:worded --data word_problems:split=train --problems 3200 "
    "--steps 400 --batch 32 --learning-rate 2e-3 --output ./trained\n\n"
    "cactus train-draft --target ./large --layers 4 --width 512 --data texts.jsonl --loss relaxed:clamped:width=3 "
    "--output ./trained\n\n"
    "torchrun --nproc-per-node 4 --no-python cactus train-draft --target ./large --first-layers 2 "
    "--data prompts.jsonl --bfloat16 --output ./trained"
)
START, LEARNED, HOW = "Where the draft starts (one of three)", "What it learns from", "How it learns"
INTERRUPTED = 130


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
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", rich_help_panel=START, show_default=False,
                     help="A draft with the target's tokenizer: a local path, a hub name, or bundled:worded."),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=START, show_default=False,
                     help="A new draft of N layers with the target's architecture and tokenizer, and --width."),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=START, show_default=False, help="Of the new draft's hidden states."),
    ] = None,
    first_layers: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=START, show_default=False, help="The target's own first N layers."),
    ] = None,
    problems: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=LEARNED, show_default="all; 500 word problems",
                     help="Take the first N."),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=LEARNED, help="Of an answer that the target or the draft gives.")
    ] = 256,
    max_length: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=LEARNED, help="Tokens of a sequence; longer ones are cut.")
    ] = 1024,
    held_out: Annotated[
        int,
        typer.Option(metavar="N", rich_help_panel=LEARNED,
                     help="Documents that choose the best checkpoint, and as many that measure the result; at most a "
                     "tenth of all each."),
    ] = 64,
    on_policy: Annotated[
        float,
        typer.Option(metavar="SHARE", rich_help_panel=LEARNED,
                     help="Share of the sequences that the draft itself continues, and the target's rows judge."),
    ] = 0.0,
    refresh_every: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=LEARNED, help="Steps after which the draft continues anew.")
    ] = 50,
    loss: Annotated[
        str,
        typer.Option(metavar="LOSS", rich_help_panel=HOW,
                     help=f"One of {', '.join(LOSS_CLASSES.values())}, which names a rule behind it, as in "
                     "relaxed:clamped:width=3."),
    ] = "lk",
    filter: Annotated[
        str | None,
        typer.Option(metavar="FILTER", rich_help_panel=HOW, show_default="none",
                     help="Which tokens count, such as adaspec:keep=0.4, which distils a reference draft first."),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", rich_help_panel=HOW, help="Of the optimiser.")] = 1000,
    batch: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=HOW, help="Sequences a step, of each process.")
    ] = 16,
    gradient_accumulation: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=HOW, help="Batches a step.")
    ] = 1,
    learning_rate: Annotated[
        float,
        typer.Option(metavar="RATE", rich_help_panel=HOW,
                     help="Of AdamW: reached after 5 % of the steps, then along a cosine to zero."),
    ] = 2e-4,
    evaluate_every: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=HOW, help="Steps between evaluations and checkpoints.")
    ] = 100,
    num_speculative_tokens: Annotated[
        int,
        typer.Option(metavar="N", rich_help_panel=HOW,
                     help="Proposals per step, of the acceptance length that chooses the best checkpoint."),
    ] = 6,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", rich_help_panel=HOW, help="Forward passes in bfloat16; weights in float32.")
    ] = False,
    cache: Annotated[
        str | None,
        typer.Option(metavar="DIR", rich_help_panel=options.RUNNING, show_default="none",
                     help="Keep the target's rows here: the 64 likeliest tokens of each and the mass of the rest, "
                     "which makes divergences a little too small."),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="S", rich_help_panel=options.RUNNING, help="Of everything random.")
    ] = 0,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Train a draft so that its target, or a relaxed rule, accepts more of it; say by how much.

    Uses transformers' trainer: several GPUs by torchrun, bfloat16, gradient accumulation. Keeps the checkpoint with the
    longest expected steps on held-out documents. The same command resumes where a kill left off. Needs the extra
    'train'.
    """
    from cactus_decoding.training.acceptance.installed import check_installed
    from cactus_decoding.training.acceptance.settings import TrainingSettings

    settings = TrainingSettings(
        target=target,
        data=data,
        loss=loss,
        draft=draft,
        layers=layers,
        width=width,
        first_layers=first_layers,
        filter=filter,
        on_policy=on_policy,
        refresh_every=refresh_every,
        problems=problems,
        max_new_tokens=max_new_tokens,
        max_length=max_length,
        held_out=held_out,
        steps=steps,
        batch_size=batch,
        gradient_accumulation=gradient_accumulation,
        learning_rate=learning_rate,
        evaluate_every=evaluate_every,
        num_speculative_tokens=num_speculative_tokens,
        bfloat16=bfloat16,
        cache=cache,
        seed=seed,
    )
    check_installed()
    options.prepare(threads, small=target == "bundled")
    from cactus_decoding.files.writing import part_of
    from cactus_decoding.training.acceptance.training import train_draft as train

    try:
        with _Stages() as report:
            folder = train(settings, output, report)
    except KeyboardInterrupt:
        typer.echo(f"cactus: interrupted; what is done is in {part_of(output)}: the same command goes on", err=True)
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


class _Stages:
    """Shows one count of progress after another."""

    def __init__(self) -> None:
        self._stage = ""
        self._open = ExitStack()
        self._show: Callable[..., None] = lambda done, remark: None

    def __enter__(self) -> Callable[[str, int, int, str], None]:
        return self._report

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def _report(self, stage: str, done: int, total: int, remark: str) -> None:
        if stage != self._stage:
            self._open.close()
            self._stage, self._show = stage, self._open.enter_context(counting(stage, total))
        self._show(done, remark)
