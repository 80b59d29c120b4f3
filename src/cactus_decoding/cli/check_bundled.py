"""`cactus check-bundled`: whether a trained pair is good enough to be bundled."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import number
from cactus_decoding.cli.progress import counting

if TYPE_CHECKING:
    from cactus_decoding.training.floors import Floor, PairScores

EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus check-bundled --threads 1\n\n"
    "cactus check-bundled --models ./trained --problems 100 --json check.json"
)


def check_bundled(
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="How many held-out problems to answer.")] = 500,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder with target/ and draft/, as train-bundled writes it.", show_default="bundled"
        ),
    ] = None,
    num_speculative_tokens: options.NumSpeculativeTokens = 6,
    seed: Annotated[int, typer.Option(min=0, max=2**32, metavar="S", help="Of the problems and of the answers.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the result, with its provenance, here."),
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Measure a pair on held-out problems at temperature 1, and fail where it misses a floor.

    The target alone must answer 90 % right, the draft alone at least 25 points fewer, and lossless speculation must
    have an acceptance_length between 2.5 and 5. Exit code 1: a floor was missed.
    """
    import torch

    from cactus_decoding import load_pair, zoo
    from cactus_decoding.arguments.checks import check_integer
    from cactus_decoding.files.provenance import provenance
    from cactus_decoding.files.writing import as_json, check_writable, write_atomically
    from cactus_decoding.training.floors import check_floors, evaluate_pair
    from cactus_decoding.zoo.word_problems import word_problems

    check_integer("num_speculative_tokens", num_speculative_tokens, 1)
    check_writable(json_file)
    options.prepare(threads, small=True)
    target, draft = (zoo.path(role) if models is None else models / role for role in ("target", "draft"))
    pair = load_pair(target, draft, dtype=torch.float32)
    draft_alone = load_pair(draft, "ngram", dtype=torch.float32)
    arguments = {
        "models": None if models is None else str(models),
        "problems": problems,
        "split": "test",
        "temperature": 1.0,
        "num_speculative_tokens": num_speculative_tokens,
        "seed": seed,
    }
    with counting("Answering", problems) as report:
        scores = evaluate_pair(
            pair,
            draft_alone,
            list(islice(word_problems("test", seed=seed), problems)),
            num_speculative_tokens=num_speculative_tokens,
            seed=seed,
            report=report,
        )
    floors = check_floors(scores)
    if json_file is not None:
        result = {
            "scores": {name: getattr(scores, name).as_dict() for name in ("target", "draft", "lossless")},
            "floors": [vars(floor) for floor in floors],
            "provenance": provenance(arguments),
        }
        write_atomically(json_file, as_json(result, indent=2) + "\n")
    console = Console(highlight=False)
    console.print(_table(scores, floors))
    raise typer.Exit(0 if all(floor.met for floor in floors) else 1)


def _table(scores: PairScores, floors: list[Floor]) -> Table:
    table = Table(title=f"The bundled pair on {scores.target.answers} held-out problems")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("asked")
    table.add_column("")
    for floor in floors:
        met = "[bold #009e73]met[/]" if floor.met else "[bold underline #d55e00]missed[/]"
        table.add_row(floor.name, number(floor.value, 3), floor.asked, met)
    table.add_section()
    for name in ("target", "draft", "lossless"):
        score = getattr(scores, name)
        low, high = score.interval
        table.add_row(f"right answers, {name}", f"{score.right}/{score.answers}", f"95 %: {low:.3f} to {high:.3f}", "")
    return table
